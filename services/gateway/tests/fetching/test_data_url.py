"""data: URLs: decoded here, strictly, within the limit."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage_gateway.fetching import FetchPolicy, UrlLoader
from omnistage_gateway.fetching.refusals import UrlRefused


@pytest.mark.parametrize(
    ("url", "data", "media_type"),
    [
        ("data:,A%20brief%20note", b"A brief note", "text/plain"),
        ("data:text/html,%3Cp%3E", b"<p>", "text/html"),
        ("data:audio/wav;base64,AAEC", b"\0\1\2", "audio/wav"),
        ("DATA:IMAGE/PNG;BASE64,AAEC", b"\0\1\2", "image/png"),
        ("data:;base64,AAEC", b"\0\1\2", "text/plain"),
        ("data:;charset=utf-8,%C3%BC", "ü".encode(), "text/plain"),
        ("data:audio/wav;base64,AAE%3D", b"\0\1", "audio/wav"),
        ("data:x/y,", b"", "x/y"),
    ],
)
async def test_content_and_type(url: str, data: bytes, media_type: str) -> None:
    fetched = await UrlLoader().load(url, param="p")
    assert (fetched.data, fetched.media_type) == (data, media_type)


@given(st.binary(max_size=200))
async def test_any_bytes_come_back(data: bytes) -> None:
    url = f"data:audio/wav;base64,{base64.b64encode(data).decode()}"
    assert (await UrlLoader().load(url, param="p")).data == data


@pytest.mark.parametrize(
    "url",
    [
        "data:audio/wav;base64",
        "data:audio/wav;base64,AA",
        "data:audio/wav;base64,A A=",
        "data:audio/wav;base64,AA==\n",
        "data:audio/wav;base64,AA-_",
        "data:,ü",
        "data:" + "x" * 300 + ",a",
    ],
)
async def test_what_is_malformed(url: str) -> None:
    with pytest.raises(UrlRefused) as refused:
        await UrlLoader().load(url, param="p")
    assert (refused.value.code, refused.value.param) == ("invalid_url", "p")


@pytest.mark.parametrize("size", [1000, 1001, 3000, 100_000, 3_000_000])
async def test_the_limit_holds_for_both_forms(size: int) -> None:
    loader = UrlLoader(FetchPolicy(max_bytes=1000))
    for url in (f"data:;base64,{base64.b64encode(bytes(size)).decode()}", "data:," + "a" * size):
        if size <= 1000:
            assert len((await loader.load(url, param="p")).data) == size
            continue
        with pytest.raises(UrlRefused) as refused:
            await loader.load(url, param="p")
        assert refused.value.code == "url_too_large"


async def test_content_beyond_a_mebibyte_is_decoded_beside_the_event_loop() -> None:
    data = bytes(range(256)) * 8192
    assert (await UrlLoader().load(f"data:;base64,{base64.b64encode(data).decode()}", param="p")).data == data
