"""Which URLs may be asked at all, before any name is looked up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage_gateway.fetching import FetchPolicy, UrlLoader
from omnistage_gateway.fetching.refusals import UrlRefused


@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("file:///etc/passwd", "url_not_allowed"),
        ("FILE:///etc/passwd", "url_not_allowed"),
        ("ftp://example.com/x", "url_not_allowed"),
        ("gopher://example.com/x", "url_not_allowed"),
        ("http://example.com/x", "url_not_allowed"),
        ("javascript:alert(1)", "url_not_allowed"),
        ("/etc/passwd", "url_not_allowed"),
        ("//example.com/x", "url_not_allowed"),
        ("", "url_not_allowed"),
        ("https:", "invalid_url"),
        ("https:///x", "invalid_url"),
        ("https:example.com", "invalid_url"),
        ("https://exa mple.com/", "invalid_url"),
        ("https://exa\tmple.com/", "invalid_url"),
        ("https://good.com\\@evil.com/", "invalid_url"),
        ("https://good.com\\evil.com/", "invalid_url"),
        ("https://[::1%25lo]/", "invalid_url"),
        ("https://[::1/", "invalid_url"),
        ("https://a:b:c/", "invalid_url"),
        ("https://example.com:99999/", "url_not_allowed"),
        ("https://" + "a" * 5000 + "/", "invalid_url"),
        ("https://user@example.com/", "url_not_allowed"),
        ("https://user:secret@example.com/", "url_not_allowed"),
        ("https://:secret@example.com/", "url_not_allowed"),
        ("https://example.com:22/", "url_not_allowed"),
        ("https://example.com:0/", "url_not_allowed"),
    ],
)
async def test_what_is_refused_by_its_looks(url: str, code: str) -> None:
    with pytest.raises(UrlRefused) as refused:
        await UrlLoader().load(url, param="messages.[0].content.[1].image_url.url")
    assert (refused.value.status, refused.value.code) == (400, code)
    assert refused.value.param == "messages.[0].content.[1].image_url.url"
    assert "secret" not in refused.value.message


@given(st.text(max_size=60) | st.from_regex(r"https?://[^/]{0,20}(/.*)?", fullmatch=True))
def test_any_text_is_a_url_or_refused(text: str) -> None:
    try:
        url = FetchPolicy(schemes=("http", "https")).check(text)
    except UrlRefused:
        return
    assert url.scheme in ("http", "https")
    assert url.host
    assert not url.userinfo


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("example.com", True),
        ("EXAMPLE.com", True),
        ("example.com.", True),
        ("a.media.example.org", True),
        ("a.b.media.example.org", True),
        ("media.example.org", False),
        ("evil-example.com", False),
        ("example.com.evil.net", False),
        ("xmedia.example.org", False),
    ],
)
def test_a_list_of_hosts(host: str, allowed: bool) -> None:
    policy = FetchPolicy(hosts=("example.com", "*.media.example.org"))
    if allowed:
        assert policy.check(f"https://{host}/a").host.lower() == host.lower()
        return
    with pytest.raises(UrlRefused, match="its host is not allowed"):
        policy.check(f"https://{host}/a")


def test_fragments_stay_here() -> None:
    assert str(FetchPolicy().check("https://example.com/a?b=c#secret")) == "https://example.com/a?b=c"
