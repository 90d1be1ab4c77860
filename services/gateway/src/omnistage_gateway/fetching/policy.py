"""What may be loaded, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from omnistage_gateway.fetching.addresses import Network
from omnistage_gateway.fetching.refusals import INVALID, NOT_ALLOWED, UrlRefused

SCHEMES = ("https", "http", "data")
"""All that can be loaded; which of them may be is a setting."""

_DEFAULT_PORTS = {"https": 443, "http": 80}
_MAX_URL_CHARS = 4096
_FIRST_FREE_PORT = 1024
_HOST_CHARS = frozenset("abcdefghijklmnopqrstuvwxyz0123456789-._:")


@dataclass(frozen=True)
class FetchPolicy:
    """The rules for URLs that clients name.

    Attributes:
        schemes: of `SCHEMES`, those that are allowed.
        hosts: names that may be asked, "example.com" or "*.example.com" for all below it; empty for any.
        networks: networks that may be reached although they are not public.
        max_bytes: largest content, as sent and as unpacked.
        total_s: time for all of it: line, names, redirects, content.
        max_redirects: how often a server may send on.
        at_once: URLs that are loaded at the same time; others wait. Bounds the memory that they take.
    """

    schemes: tuple[str, ...] = ("https", "data")
    hosts: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    max_bytes: int = 25 * 2**20
    total_s: float = 30.0
    max_redirects: int = 3
    at_once: int = 8

    def check_scheme(self, scheme: str) -> None:
        """Raises UrlRefused for a scheme that is not allowed."""
        if scheme not in self.schemes:
            allowed = ", ".join(f"{name}:" for name in self.schemes) or "none"
            raise UrlRefused(f"only these schemes are allowed: {allowed}", code=NOT_ALLOWED)

    def check(self, text: str) -> httpx.URL:
        """A URL of http or https that may be asked, without its fragment.

        Raises:
            UrlRefused: it is malformed, holds credentials, or its scheme, port or host is not allowed.
        """
        if len(text) > _MAX_URL_CHARS:
            raise UrlRefused(f"it is longer than {_MAX_URL_CHARS} characters", code=INVALID)
        try:
            url = httpx.URL(text).copy_with(fragment=None)
        except httpx.InvalidURL:
            raise UrlRefused("it is malformed", code=INVALID) from None
        self.check_scheme(url.scheme)
        host = url.raw_host.decode("ascii").lower()
        if url.scheme not in _DEFAULT_PORTS or not host or not set(host) <= _HOST_CHARS or "\\" in text:
            raise UrlRefused("it is malformed", code=INVALID)
        if url.userinfo:
            raise UrlRefused("it must not hold a user name or password", code=NOT_ALLOWED)
        if port_of(url) not in _DEFAULT_PORTS.values() and not _FIRST_FREE_PORT <= port_of(url) <= 65535:
            raise UrlRefused("its port is not allowed", code=NOT_ALLOWED)
        if self.hosts and not any(_matches(host.rstrip("."), pattern) for pattern in self.hosts):
            raise UrlRefused("its host is not allowed", code=NOT_ALLOWED)
        return url


def port_of(url: httpx.URL) -> int:
    """The port that a URL leads to."""
    return url.port if url.port is not None else _DEFAULT_PORTS[url.scheme]


def _matches(host: str, pattern: str) -> bool:
    pattern = pattern.lower()
    return host.endswith(pattern[1:]) if pattern.startswith("*.") else host == pattern
