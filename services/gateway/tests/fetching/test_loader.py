"""Loading over HTTP from real servers: every hop is checked, and what is checked is what is connected to."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import logging
import ssl
import subprocess
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from omnistage.observability import setup_logging
from omnistage_gateway.fetching import FetchPolicy, UrlLoader
from omnistage_gateway.fetching.refusals import UrlRefused

Make = Callable[..., UrlLoader]


async def refused_code(loader: UrlLoader, url: str) -> tuple[str, str]:
    """Code and message of the refusal."""
    with pytest.raises(UrlRefused) as refused:
        await loader.load(url, param="image_url")
    assert refused.value.status == 400
    assert refused.value.param == "image_url"
    return refused.value.code, refused.value.message


async def test_content_and_its_type_come_back(start: Any, loader: Make) -> None:
    server = await start(body=b"RIFF", content_type="Audio/Wav; codec=1")
    fetched = await loader().load(server.url("/a?b=c#d"), param="p")
    assert (fetched.data, fetched.media_type) == (b"RIFF", "audio/wav")
    assert fetched.content_type == "Audio/Wav; codec=1"
    head = server.heads[0].lower()
    assert head.startswith("get /a?b=c http/1.1\r\n")
    assert f"host: 127.0.0.1:{server.port}\r\n" in head
    assert "cookie" not in head
    assert "authorization" not in head


async def test_proxy_settings_of_the_environment_are_not_followed(
    start: Any, loader: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = await start(body=b"from the proxy")
    monkeypatch.setenv("http_proxy", proxy.url())
    monkeypatch.setenv("ALL_PROXY", proxy.url())
    server = await start(body=b"direct")
    assert (await loader().load(server.url(), param="p")).data == b"direct"
    assert proxy.heads == []


async def test_over_ipv6(start: Any, loader: Make) -> None:
    server = await start(body=b"six", host="::1")
    assert (await loader().load(server.url(host="[::1]"), param="p")).data == b"six"
    assert f"host: [::1]:{server.port}\r\n" in server.heads[0].lower()


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "0177.0.0.1", "0x7f.1", "2130706433", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0"]
)
async def test_a_private_host_is_not_asked_however_it_is_written(start: Any, host: str) -> None:
    server = await start(body=b"secret")
    code, message = await refused_code(UrlLoader(FetchPolicy(schemes=("http",))), server.url(host=host))
    assert code in ("url_not_allowed", "url_unreachable", "invalid_url")
    assert "secret" not in message
    assert server.heads == []
    assert server.open == 0


async def test_a_name_with_a_private_address_looks_to_clients_like_a_name_that_nobody_knows(
    start: Any, loader: Make
) -> None:
    server = await start(body=b"secret")
    names = {"intern.test": [["10.9.8.7"]], "mixed.test": [["127.0.0.1", "10.9.8.7"]], "shared.test": [["100.64.0.9"]]}
    known = loader(names)
    told = [await refused_code(known, server.url(host=name)) for name in names]
    told.append(await refused_code(loader(), server.url(host="nobody.invalid")))
    assert len(set(told)) == 1
    assert told[0][0] == "url_unreachable"
    assert "10.9.8.7" not in str(told)
    assert server.heads == []


async def test_the_address_that_was_checked_is_the_one_connected_to(start: Any, loader: Make) -> None:
    """A name that changes its address after the first question (rebinding) gains nothing by it."""
    server = await start(body=b"the checked one")
    names = {"voices.test": [["127.0.0.1"], ["169.254.169.254"]]}
    rebinding = loader(names)
    assert (await rebinding.load(server.url(host="voices.test"), param="p")).data == b"the checked one"
    assert f"host: voices.test:{server.port}\r\n" in server.heads[0].lower()
    assert (await refused_code(rebinding, server.url(host="voices.test")))[0] == "url_unreachable"
    assert len(server.heads) == 1


async def test_the_next_address_is_tried_when_one_does_not_answer(start: Any, loader: Make) -> None:
    server = await start(body=b"second")
    names = {"two.test": [["127.0.0.2", "127.0.0.1"]]}
    assert (await loader(names).load(server.url(host="two.test"), param="p")).data == b"second"


@pytest.mark.parametrize("status", ["301 M", "302 F", "303 S", "307 T", "308 P"])
async def test_redirects_are_followed_within_the_rules(start: Any, loader: Make, status: str) -> None:
    last = await start(body=b"end")
    first = await start(status, location=last.url("/next"))
    assert (await loader().load(first.url(), param="p")).data == b"end"
    assert last.heads[0].startswith("GET /next ")


async def test_relative_redirects_and_too_many_of_them(start: Any, loader: Make) -> None:
    server = await start("302 Found", location="again")
    code, message = await refused_code(loader(max_redirects=2), server.url("/a/b"))
    assert (code, "more than 2 times" in message) == ("url_not_allowed", True)
    assert [head.split()[1] for head in server.heads] == ["/a/b", "/a/again", "/a/again"]


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://[fe80::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://0x0a000001/",
        "http://10.0.0.1:6379/",
        "http://intern.test/",
        "https://user:pw@127.0.0.1/",
        "file:///etc/passwd",
        "data:,inline",
        "ftp://127.0.0.1/",
        "http://127.0.0.1:25/",
        "http://[::1",
    ],
)
async def test_no_redirect_leads_to_what_could_not_be_asked_directly(start: Any, loader: Make, target: str) -> None:
    names = {
        "127.0.0.1": [["127.0.0.1"]],
        "intern.test": [["192.168.7.7"]],
        "169.254.169.254": [["169.254.169.254"]],
        "fe80::1": [["fe80::1"]],
        "::ffff:10.0.0.1": [["::ffff:10.0.0.1"]],
        "0x0a000001": [["10.0.0.1"]],
        "10.0.0.1": [["10.0.0.1"]],
    }
    first = await start("302 Found", location=target)
    code, message = await refused_code(loader(names), first.url())
    assert code in ("url_not_allowed", "url_unreachable", "invalid_url")
    for private in ("169.254", "10.0.0", "192.168", "intern", "passwd", "pw"):
        assert private not in message


async def test_a_redirect_does_not_leave_the_list_of_hosts_or_the_schemes(start: Any, loader: Make) -> None:
    other = await start(body=b"x", host="127.0.0.2")
    first = await start("302 Found", location=other.url(host="127.0.0.2"))
    assert (await refused_code(loader(hosts=("127.0.0.1",)), first.url()))[0] == "url_not_allowed"
    assert other.heads == []


@pytest.mark.parametrize("status", ["404 Not Found", "500 Oops", "206 Partial", "204 No Content", "304 Not Modified"])
async def test_any_other_status_is_no_content_and_is_not_shown(start: Any, loader: Make, status: str) -> None:
    server = await start(status, content_length="")
    code, message = await refused_code(loader(), server.url())
    assert code == "url_unreachable"
    assert status.split()[0] not in message


@pytest.mark.parametrize(("size", "fits"), [(1000, True), (1001, False), (500_000, False)])
@pytest.mark.parametrize("declared", [True, False])
async def test_the_size_limit(start: Any, loader: Make, size: int, fits: bool, declared: bool) -> None:
    server = await start(body=bytes(size), **({} if declared else {"content_length": ""}))
    if fits:
        assert len((await loader(max_bytes=1000).load(server.url(), param="p")).data) == size
    else:
        assert (await refused_code(loader(max_bytes=1000), server.url()))[0] == "url_too_large"


async def test_a_length_that_lies_is_no_way_around_the_limit(start: Any, loader: Make) -> None:
    short = await start(body=b"abcdef", content_length="3")
    assert (await loader().load(short.url(), param="p")).data == b"abc"
    long = await start(body=b"abc", content_length="600")
    assert (await refused_code(loader(), long.url()))[0] == "url_unreachable"
    huge = await start(body=b"abc", content_length="9" * 15)
    assert (await refused_code(loader(), huge.url()))[0] == "url_too_large"
    both = await start(body=b"5\r\nabcde\r\n0\r\n\r\n", content_length="1", transfer_encoding="chunked")
    assert (await refused_code(loader(max_bytes=4), both.url()))[0] in ("url_too_large", "url_unreachable")


async def test_a_body_without_end_is_cut_at_the_limit(start: Any, loader: Make) -> None:
    sent = 0

    async def pour(_head: str, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1000\r\n" + bytes(4096) + b"\r\n")
            sent += 4096
            await writer.drain()

    server = await start(pour)
    assert (await refused_code(loader(max_bytes=100_000), server.url()))[0] == "url_too_large"
    while server.open:
        await asyncio.sleep(0.01)
    assert sent < 50_000_000


async def _trickle(_head: str, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


async def _silent(_head: str, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(3600)


async def _endless_head(_head: str, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x: y\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


async def _always_continue(_head: str, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await writer.drain()
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("slow", [_trickle, _silent, _endless_head, _always_continue])
async def test_a_slow_server_is_left_when_the_time_is_over(start: Any, loader: Make, slow: Any) -> None:
    server = await start(slow)
    code, message = await refused_code(loader(total_s=0.5), server.url())
    assert code == "url_timeout"
    assert "0.5 s" in message


async def test_a_head_without_bound_is_not_kept(start: Any, loader: Make) -> None:
    async def pour(_head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nx: ")
        while True:
            writer.write(b"y" * 4096)
            await writer.drain()

    server = await start(pour)
    assert (await refused_code(loader(), server.url()))[0] == "url_unreachable"


async def test_time_in_the_resolver_and_in_line_counts(loader: Make, start: Any) -> None:
    server = await start(_silent)
    one = loader(total_s=0.4, at_once=1)
    codes = await asyncio.gather(*(refused_code(one, server.url()) for _ in range(3)))
    assert {code for code, _ in codes} == {"url_timeout"}

    async def never(_host: str, _port: int) -> Any:
        await asyncio.sleep(3600)

    stuck = UrlLoader(FetchPolicy(schemes=("http",), total_s=0.2), resolver=never)
    assert (await refused_code(stuck, "http://x.test/"))[0] == "url_timeout"


async def test_gzip_is_unpacked_and_a_bomb_is_not(start: Any, loader: Make) -> None:
    small = await start(body=gzip.compress(b"hello" * 10), content_encoding="gzip")
    assert (await loader().load(small.url(), param="p")).data == b"hello" * 10
    bomb = gzip.compress(bytes(200_000_000), 9)
    assert len(bomb) < 250_000
    server = await start(body=bomb, content_encoding="gzip")
    assert (await refused_code(loader(max_bytes=1_000_000), server.url()))[0] == "url_too_large"


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"not packed at all"),
        ("gzip", gzip.compress(b"x" * 1000)[:-9]),
        ("gzip", gzip.compress(b"a") + gzip.compress(b"b")),
        ("deflate", zlib.compress(b"x")),
        ("br", b"x"),
        ("gzip, gzip", gzip.compress(gzip.compress(b"x"))),
    ],
)
async def test_what_cannot_be_unpacked_safely_is_refused(start: Any, loader: Make, encoding: str, body: bytes) -> None:
    server = await start(body=body, content_encoding=encoding)
    assert (await refused_code(loader(), server.url()))[0] in ("url_unreachable", "url_not_allowed")


@pytest.mark.parametrize("answer", [b"", b"\0\1\2garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n"])
async def test_a_server_that_does_not_speak_http(start: Any, loader: Make, answer: bytes) -> None:
    async def raw(_head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(answer)

    server = await start(raw)
    assert (await refused_code(loader(), server.url()))[0] == "url_unreachable"


async def test_nobody_listens(loader: Make, start: Any) -> None:
    assert (await refused_code(loader(), "http://127.0.0.1:9/"))[0] == "url_not_allowed"
    server = await start()
    assert (await refused_code(loader({"127.0.0.1": [["127.0.0.3"]]}), server.url()))[0] == "url_unreachable"


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All that a gateway would log, at its most talkative."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    setup_logging("debug", True, "gateway", "test", stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


async def test_logs_tell_why_and_neither_url_nor_content(start: Any, loader: Make, log: io.StringIO) -> None:
    server = await start("302 Found", location="http://10.3.2.1/?token=canary-2", body=b"canary-3")
    await refused_code(loader(), server.url("/?token=canary-1"))
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [(line["event"], line["reason"]) for line in lines] == [
        ("url_refused", "the host has an address that is not public")
    ]
    assert "canary" not in log.getvalue()
    assert "10.3.2.1" not in log.getvalue()


def _certificate(folder: Path, name: str) -> tuple[Path, Path]:
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    subprocess.run(
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN={name} "
        f"-addext subjectAltName=DNS:{name} -keyout {key} -out {certificate}".split(),
        check=True,
        capture_output=True,
        timeout=60,
    )
    return certificate, key


async def test_https_is_verified_against_the_name_although_the_address_is_connected_to(
    start: Any, loader: Make, tmp_path: Path
) -> None:
    certificate, key = _certificate(tmp_path, "voices.test")
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(certificate, key)
    asked_for: list[str | None] = []
    serving.sni_callback = lambda _socket, name, _context: asked_for.append(name)
    server = await start(body=b"over tls", tls=serving)
    names = {"voices.test": [["127.0.0.1"]], "other.test": [["127.0.0.1"]]}
    trusting = ssl.create_default_context(cafile=str(certificate))
    secure = loader(names, tls=trusting)
    assert (await secure.load(server.url(host="voices.test", scheme="https"), param="p")).data == b"over tls"
    assert asked_for == ["voices.test"]
    assert (await refused_code(secure, server.url(host="other.test", scheme="https")))[0] == "url_unreachable"
    untrusting = loader(names)
    assert (await refused_code(untrusting, server.url(host="voices.test", scheme="https")))[0] == "url_unreachable"
    assert len(server.heads) == 1


async def test_cancelling_leaves_no_connection(start: Any, loader: Make) -> None:
    server = await start(_silent)
    loading = asyncio.ensure_future(loader().load(server.url(), param="p"))
    while not server.heads:
        await asyncio.sleep(0.01)
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
