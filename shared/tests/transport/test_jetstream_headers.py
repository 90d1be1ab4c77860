"""Headers are read as nats-py reads them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client as LibraryClient

from omnistage.transport.jetstream.client import Client

NAMES = st.binary(max_size=12) | st.sampled_from([b"Nats-Sequence", b" Nats-Subject ", b"two words", b"tab\there", b""])
LINES = st.tuples(NAMES, st.sampled_from([b":", b": ", b":\t", b""]), st.binary(max_size=20)).map(b"".join)


@given(st.lists(LINES, max_size=8).map(b"\r\n".join))
def test_headers_are_those_of_the_library(raw: bytes) -> None:
    assert Client._parse_header_lines(raw) == LibraryClient._parse_header_lines(raw)


@pytest.mark.parametrize(
    ("raw", "headers"),
    [
        (b"Nats-Sequence: 12\r\nNats-Subject:omni.v1\r\n\r\n", {"Nats-Sequence": "12", "Nats-Subject": "omni.v1"}),
        (b"two words: 1\r\nno separator\r\nn\xc3\xa4me: 1\r\nKey: \xc3\xa4\xff\r\n", {"Key": "ä\ufffd"}),
        (b"Key: a: b\r\nKey: c", {"Key": "c"}),
    ],
)
def test_headers(raw: bytes, headers: dict[str, str]) -> None:
    assert Client._parse_header_lines(raw) == headers
