"""Addresses of brokers as they may be shown: a URL may hold a password, so only host and port ever are."""

from __future__ import annotations

from urllib.parse import urlsplit

from omnistage.errors import ConfigError

MEMORY = "memory"
SCHEMES = (MEMORY, "nats", "tls", "ws", "wss")


def checked(url: str) -> list[str]:
    """The addresses in a comma-separated list.

    Raises:
        ConfigError: one is malformed; which, is told by its number, for it may hold a password.
    """
    addresses = [part.strip() for part in url.split(",")]
    for number, address in enumerate(addresses, start=1):
        try:
            parts = urlsplit(address)
            good = parts.scheme in SCHEMES and (parts.scheme == MEMORY or bool(parts.hostname))
            # Read for its check: raises ValueError for a port that is no number.
            _ = parts.port
        except ValueError:
            good = False
        if not good:
            raise ConfigError(
                f"address number {number} of the broker is none: memory:// or nats://host:port, "
                "with reserved characters of a password percent-encoded"
            )
    return addresses


def shown(url: str) -> str:
    """The hosts and ports of addresses that `checked` has passed."""
    parts = [urlsplit(address) for address in checked(url)]
    return ", ".join(f"{part.hostname}:{part.port or 4222}" for part in parts)
