"""The content of an answer, never more of it in memory than is allowed, packed or unpacked."""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import httpx

from omnistage_gateway.fetching.refusals import NOT_ALLOWED, TOO_LARGE, UrlRefused, unreachable

_GZIP = 16 + zlib.MAX_WBITS


@dataclass(frozen=True)
class Fetched:
    """What a URL leads to.

    Attributes:
        data: the content, unpacked.
        content_type: as declared, parameters included; empty if the server declares none.
    """

    data: bytes
    content_type: str

    @property
    def media_type(self) -> str:
        """The type without parameters, in lower case."""
        return self.content_type.partition(";")[0].strip().lower()


class _Unpacker:
    """Bytes as they were before they were packed, at most so many."""

    def __init__(self, encoding: str, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._gzip = zlib.decompressobj(_GZIP) if encoding in ("gzip", "x-gzip") else None
        if self._gzip is None and encoding not in ("", "identity"):
            raise UrlRefused("its content is packed in a way that is not supported", code=NOT_ALLOWED)
        self.data = bytearray()

    def feed(self, piece: bytes) -> None:
        if self._gzip is not None:
            # One byte more than is allowed is enough to know that it is too much.
            piece = self._gzip.decompress(piece, self._max_bytes + 1 - len(self.data))
        self.data += piece
        if len(self.data) > self._max_bytes:
            raise _too_large(self._max_bytes)

    def end(self) -> None:
        if self._gzip is not None and (not self._gzip.eof or self._gzip.unused_data):
            raise unreachable("the packed content has no end, or more than one")


def _too_large(max_bytes: int) -> UrlRefused:
    return UrlRefused(f"its content is larger than {max_bytes} bytes", code=TOO_LARGE)


async def read_content(response: httpx.Response, max_bytes: int) -> Fetched:
    """The content of an answer whose body has not been read.

    Raises:
        UrlRefused: more than `max_bytes`, declared, sent or unpacked; or packed in a way that cannot be bounded.
    """
    declared = response.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    unpacker = _Unpacker(response.headers.get("content-encoding", "").strip().lower(), max_bytes)
    sent = 0
    try:
        async for piece in response.aiter_raw():
            sent += len(piece)
            if sent > max_bytes:
                raise _too_large(max_bytes)
            unpacker.feed(piece)
        unpacker.end()
    except zlib.error:
        raise unreachable("the content is not packed as declared") from None
    return Fetched(bytes(unpacker.data), response.headers.get("content-type", ""))
