"""Servers that answer exactly the bytes that a test says, on loopback, and loaders that may reach them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from omnistage_gateway.fetching import FetchPolicy, UrlLoader
from omnistage_gateway.fetching.addresses import Address

LOOPBACK = (ip_network("127.0.0.0/8"), ip_network("::1/128"))

Answer = Callable[[str, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Server:
    """One that is running.

    Attributes:
        heads: request heads in the order in which they came.
        open: connections that stand now.
    """

    port: int
    heads: list[str] = field(default_factory=list)
    open: int = 0

    def url(self, path: str = "/", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"


def answering(status: str = "200 OK", body: bytes = b"", **headers: str) -> Answer:
    """An answer whose headers are as given; Content-Length is set unless it is given or left out as ""."""
    fields = {"content_length": str(len(body)), **headers}
    head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in fields.items() if value)

    async def answer(_head: str, writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body)

    return answer


@pytest.fixture
async def start() -> AsyncIterator[Callable[..., Awaitable[Server]]]:
    """Starts servers, by a status, a body and headers, or by what they do; all end with the test."""
    async with AsyncExitStack() as stack:

        async def starting(
            what: Answer | str = "200 OK",
            *,
            body: bytes = b"",
            host: str = "127.0.0.1",
            tls: ssl.SSLContext | None = None,
            **headers: str,
        ) -> Server:
            answer = answering(what, body, **headers) if isinstance(what, str) else what
            server = Server(0)

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                server.open += 1
                try:
                    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                    server.heads.append(head)
                    await answer(head, writer)
                    await writer.drain()
                except (ConnectionError, asyncio.IncompleteReadError):
                    return
                finally:
                    server.open -= 1
                    writer.close()

            listening = await asyncio.start_server(serve, host, 0, ssl=tls)
            await stack.enter_async_context(listening)
            server.port = listening.sockets[0].getsockname()[1]
            return server

        yield starting


@pytest.fixture
def loader() -> Callable[..., UrlLoader]:
    """Makes loaders that may reach loopback; `names` are a phone book instead of the resolver."""

    def make(names: dict[str, list[list[str]]] | None = None, tls: Any = None, **rules: Any) -> UrlLoader:
        policy = FetchPolicy(**{"schemes": ("http", "https", "data"), "networks": LOOPBACK, "total_s": 20.0, **rules})
        if names is None:
            return UrlLoader(policy, tls=tls)
        asked: dict[str, int] = {}

        async def look_up(host: str, _port: int) -> list[Address]:
            """The next list of addresses for every question about the same host; the last one stays."""
            number = asked[host] = asked.get(host, -1) + 1
            return [ip_address(text) for text in names[host][min(number, len(names[host]) - 1)]]

        return UrlLoader(policy, resolver=look_up, tls=tls)

    return make
