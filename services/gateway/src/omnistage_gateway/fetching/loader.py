"""Loads a URL: each hop is checked by the same rules, and the address that was checked is the one connected to."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from ipaddress import ip_address

import httpx

from omnistage.observability import get_logger
from omnistage_gateway.fetching import data_url
from omnistage_gateway.fetching.addresses import Address, may_reach, resolve
from omnistage_gateway.fetching.content import Fetched, read_content
from omnistage_gateway.fetching.policy import FetchPolicy, port_of
from omnistage_gateway.fetching.refusals import INVALID, NOT_ALLOWED, TIMED_OUT, UNREACHABLE, UrlRefused, unreachable

_log = get_logger(__name__)

Resolver = Callable[[str, int], Awaitable[list[Address]]]

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_ADDRESSES_TRIED = 3


class UrlLoader:
    """The one loader of the gateway. Sends no credentials and no cookies, follows no proxy settings, keeps nothing.

    Args:
        policy: what may be loaded.
        resolver: host and port -> its addresses.
        tls: trusted authorities; the system's own if None.
    """

    def __init__(
        self, policy: FetchPolicy | None = None, *, resolver: Resolver = resolve, tls: ssl.SSLContext | None = None
    ) -> None:
        self.policy = policy or FetchPolicy()
        self._resolver = resolver
        self._tls = tls
        self._places = asyncio.Semaphore(self.policy.at_once)

    async def load(self, url: str, *, param: str) -> Fetched:
        """What a client's URL leads to.

        Args:
            param: the request's field that holds it, for errors.

        Raises:
            UrlRefused: 400; it may not be loaded, or could not be.
        """
        try:
            return await self._load(url)
        except UrlRefused as refused:
            # A URL may carry a secret, so neither it nor its host is logged.
            _log.info("url_refused", param=param, code=refused.code, reason=refused.reason)
            raise refused.about(param) from None

    async def _load(self, url: str) -> Fetched:
        scheme = url.partition(":")[0].lower()
        self.policy.check_scheme(scheme)
        if scheme == "data":
            return await data_url.decode(url, self.policy.max_bytes)
        try:
            async with asyncio.timeout(self.policy.total_s), self._places:
                return await self._follow(self.policy.check(url))
        except TimeoutError:
            raise UrlRefused(f"it could not be loaded within {self.policy.total_s:g} s", code=TIMED_OUT) from None

    async def _follow(self, url: httpx.URL) -> Fetched:
        for hop in range(self.policy.max_redirects + 1):
            found = await self._ask(url, is_clients_own=hop == 0)
            if isinstance(found, Fetched):
                return found
            url = found
        raise UrlRefused(f"it leads on more than {self.policy.max_redirects} times", code=NOT_ALLOWED)

    async def _ask(self, url: httpx.URL, *, is_clients_own: bool) -> Fetched | httpx.URL:
        """The content, or where the server sends on to."""
        for address in await self._addresses(url, is_clients_own=is_clients_own):
            try:
                return await self._ask_at(url, address)
            except httpx.ConnectError:
                continue
            except httpx.HTTPError as error:
                raise unreachable(type(error).__name__) from None
        raise unreachable("no connection")

    async def _addresses(self, url: httpx.URL, *, is_clients_own: bool) -> list[Address]:
        """Where a host is. One forbidden address among several forbids the host."""
        host = url.raw_host.decode("ascii")
        found = await self._resolver(host, port_of(url))
        if all(may_reach(address, self.policy.networks) for address in found):
            return found[:_ADDRESSES_TRIED]
        if is_clients_own and _is_address(host):
            raise UrlRefused("its address is not a public one", code=NOT_ALLOWED)
        raise unreachable("the host has an address that is not public")

    async def _ask_at(self, url: httpx.URL, address: Address) -> Fetched | httpx.URL:
        """One request over a connection of its own: a shared one might have been checked for another name."""
        tls = self._tls if self._tls is not None else await asyncio.to_thread(ssl.create_default_context)
        self._tls = tls
        request = httpx.Request(
            "GET",
            url.copy_with(host=str(address)),
            headers={
                "host": url.netloc.decode("ascii"),
                "accept": "*/*",
                "accept-encoding": "identity",
                "connection": "close",
                "user-agent": "omnistage",
            },
            extensions={
                "sni_hostname": url.raw_host.decode("ascii").rstrip("."),
                "timeout": httpx.Timeout(self.policy.total_s).as_dict(),
            },
        )
        async with httpx.AsyncHTTPTransport(verify=tls, trust_env=False) as transport:
            response = await transport.handle_async_request(request)
            response.request = request
            try:
                return await self._answered(url, response)
            finally:
                await response.aclose()

    async def _answered(self, url: httpx.URL, response: httpx.Response) -> Fetched | httpx.URL:
        if response.status_code in _REDIRECTS:
            return self._next(url, response.headers.get("location", ""))
        if response.status_code != 200:
            raise UrlRefused("its server did not answer with 200", code=UNREACHABLE)
        return await read_content(response, self.policy.max_bytes)

    def _next(self, url: httpx.URL, location: str) -> httpx.URL:
        try:
            target = str(url.join(location))
        except httpx.InvalidURL:
            raise UrlRefused("it leads on to a malformed URL", code=INVALID) from None
        try:
            return self.policy.check(target)
        except UrlRefused as refused:
            raise UrlRefused(
                "it leads on to a URL that is not allowed", code=NOT_ALLOWED, reason=refused.reason
            ) from None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
