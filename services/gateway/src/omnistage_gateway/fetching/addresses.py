"""Which addresses may be connected to: those of the public internet, and private networks that were named."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

from omnistage_gateway.fetching.refusals import unreachable

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# IANA's special-purpose registries (RFC 6890 and its updates) where they go beyond what the standard library of every
# supported Python counts as not global: relays and translations that lead to an IPv4 address, documentation, SRv6.
_SPECIAL = tuple(
    ip_network(text)
    for text in (
        "192.0.0.0/24",
        "192.88.99.0/24",
        "64:ff9b::/96",
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",
        "2002::/16",
        "3fff::/20",
        "5f00::/16",
        "fec0::/10",
    )
)


def plain(address: Address) -> Address:
    """An IPv4 address that was written as an IPv6 one, as itself."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def is_public(address: Address) -> bool:
    """Whether an address belongs to the public internet: no private, shared, loopback, link-local, multicast,
    reserved, unspecified or documentation address, and none that stands for another."""
    address = plain(address)
    if isinstance(address, IPv6Address) and address.scope_id is not None:
        return False
    special = any(address.version == network.version and address in network for network in _SPECIAL)
    return address.is_global and not (address.is_multicast or address.is_reserved or special)


def may_reach(address: Address, networks: Iterable[Network]) -> bool:
    """Whether an address may be connected to.

    Args:
        networks: those that are allowed although they are not public.
    """
    address = plain(address)
    return is_public(address) or any(address.version == one.version and address in one for one in networks)


async def resolve(host: str, port: int) -> list[Address]:
    """All addresses of a host, in the resolver's order; also of the odd ways to write one (octal, hexadecimal, short).

    Raises:
        UrlRefused: the name is not known.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise unreachable("the host's name is not known") from None
    return list(dict.fromkeys(ip_address(entry[4][0]) for entry in found))
