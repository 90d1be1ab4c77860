"""Which addresses are public, and what odd spellings of private ones come to."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage_gateway.fetching.addresses import is_public, may_reach, resolve
from omnistage_gateway.fetching.refusals import UrlRefused

PRIVATE = (
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.8",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.0.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:10.0.0.1",
    "::ffff:169.254.169.254",
    "::127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b:1::7f00:1",
    "100::1",
    "2001::1",
    "2001:db8::1",
    "2002:7f00:1::1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%eth0",
    "2606:4700::1%eth0",
    "fec0::1",
    "ff02::1",
)
PUBLIC = ("1.1.1.1", "8.8.8.8", "100.63.255.255", "100.128.0.0", "172.32.0.1", "2606:4700::1", "::ffff:8.8.8.8")


@pytest.mark.parametrize("text", PRIVATE)
def test_what_is_not_public_is_refused(text: str) -> None:
    assert not is_public(ip_address(text))
    assert not may_reach(ip_address(text), ())


@pytest.mark.parametrize("text", PUBLIC)
def test_what_is_public_is_allowed(text: str) -> None:
    assert may_reach(ip_address(text), ())


@given(st.ip_addresses(v=4, network="10.0.0.0/8") | st.ip_addresses(v=4, network="169.254.0.0/16"))
def test_writing_an_address_as_ipv6_does_not_make_it_public(address: IPv4Address) -> None:
    assert not is_public(address)
    assert not is_public(IPv6Address(f"::ffff:{address}"))
    assert not is_public(IPv6Address(f"64:ff9b::{address}"))
    assert not is_public(IPv6Address((0x2002 << 112) | (int(address) << 80)))


def test_a_named_network_opens_itself_and_nothing_else() -> None:
    networks = (ip_network("10.1.0.0/16"), ip_network("fd00::/8"))
    assert may_reach(ip_address("10.1.2.3"), networks)
    assert may_reach(ip_address("::ffff:10.1.2.3"), networks)
    assert may_reach(ip_address("fd00::7"), networks)
    assert not may_reach(ip_address("10.2.0.1"), networks)
    assert not may_reach(ip_address("127.0.0.1"), networks)


@pytest.mark.parametrize("spelling", ["127.0.0.1", "127.1", "0177.0.0.1", "0x7f.0.0.1", "2130706433", "0x7f000001"])
async def test_odd_spellings_come_to_the_address_that_they_mean(spelling: str) -> None:
    assert await resolve(spelling, 80) == [ip_address("127.0.0.1")]


async def test_a_name_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UrlRefused) as refused:
        await resolve("no-such-host.invalid", 80)
    assert refused.value.code == "url_unreachable"
