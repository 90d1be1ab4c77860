"""data: URLs (RFC 2397): the content is in the URL itself."""

from __future__ import annotations

import asyncio
import base64
import binascii
from urllib.parse import unquote_to_bytes

from omnistage_gateway.fetching.content import Fetched
from omnistage_gateway.fetching.refusals import INVALID, TOO_LARGE, UrlRefused

_MAX_HEADER_CHARS = 256
_DEFAULT_TYPE = "text/plain;charset=US-ASCII"
_OFF_LOOP_CHARS = 1 << 20


async def decode(url: str, max_bytes: int) -> Fetched:
    """The content of a data: URL.

    Raises:
        UrlRefused: malformed, or more than `max_bytes`.
    """
    head, comma, text = url.partition(":")[2].partition(",")
    if not comma or len(head) > _MAX_HEADER_CHARS:
        raise UrlRefused("a data: URL has the form data:[type][;base64],content", code=INVALID)
    marked = head.lower().endswith(";base64")
    declared = head[: -len(";base64")] if marked else head
    content_type = _DEFAULT_TYPE if not declared else f"text/plain{declared}" if declared[0] == ";" else declared
    # One byte takes at least one character, or four for three in base64, three times as long if it is escaped.
    if len(text) > 4 * max_bytes + 4:
        raise _too_large(max_bytes)
    data = await asyncio.to_thread(_bytes, text, marked) if len(text) > _OFF_LOOP_CHARS else _bytes(text, marked)
    if len(data) > max_bytes:
        raise _too_large(max_bytes)
    return Fetched(data, content_type)


def _bytes(text: str, is_base64: bool) -> bytes:
    try:
        raw = unquote_to_bytes(text.encode("ascii"))
        return base64.b64decode(raw, validate=True) if is_base64 else raw
    except UnicodeEncodeError:
        raise UrlRefused("a data: URL may hold ASCII characters only", code=INVALID) from None
    except binascii.Error:
        raise UrlRefused("its content is not valid base64", code=INVALID) from None


def _too_large(max_bytes: int) -> UrlRefused:
    return UrlRefused(f"its content is larger than {max_bytes} bytes", code=TOO_LARGE)
