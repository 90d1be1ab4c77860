"""Request bodies: strict JSON, read once, and nothing in it taken for something else."""

from __future__ import annotations

import json
import math
import re
from email.message import Message
from typing import Any, NoReturn, TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers

from omnistage.errors import InvalidRequest
from omnistage_gateway.problems import from_validation, param_name

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"?', re.DOTALL)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")
_BRACKETS = re.compile(rb"[\[\]{}]")

M = TypeVar("M", bound=BaseModel)


class UnsupportedMediaType(InvalidRequest):
    """The body is not declared as plain JSON."""

    code = "unsupported_media_type"
    status = 415


def _fail(message: str, code: str = "invalid_json") -> NoReturn:
    raise InvalidRequest(message, code=code)


def parse_json(body: bytes, max_depth: int) -> Any:
    """The value of a JSON text (RFC 8259, UTF-8).

    Raises:
        InvalidRequest: not UTF-8, not JSON, NaN or an infinity, a key twice in one object, half a surrogate pair in
            a text, or nested too deeply.
    """
    if not body.strip():
        _fail("The request body is empty; a JSON object was expected.")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        _fail(f"The request body is not valid UTF-8: wrong byte at offset {error.start}.", "invalid_utf8")
    if _deeper_than(body, max_depth):
        _fail(f"The request body is nested more than {max_depth} levels deep.", "json_too_deep")
    try:
        value = json.loads(
            text, object_pairs_hook=_object, parse_constant=_constant, parse_float=_finite, parse_int=_integer
        )
    except json.JSONDecodeError as error:
        _fail(f"The request body is not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}.")
    if _SURROGATE.search(text):
        _check_text(value, [])
    return value


async def read_body(request: Request, kind: type[M], max_depth: int) -> M:
    """The request's body as a `kind`.

    Raises:
        UnsupportedMediaType: the content type is not application/json in UTF-8, or the body is compressed.
        InvalidRequest: see `parse_json`, or the value does not fit; names the field.
    """
    _check_headers(request.headers)
    value = parse_json(await request.body(), max_depth)
    if not isinstance(value, dict):
        _fail("The request body must be a JSON object.")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise from_validation(error, value) from None


def _check_headers(headers: Headers) -> None:
    declared = Message()
    declared["content-type"] = headers.get("content-type", "")
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise UnsupportedMediaType(
            f"Unsupported Content-Type {media_type[:100]!r}; send the body as 'application/json'."
        )
    charset = str(declared.get_param("charset", "utf-8"))
    if charset.lower() not in ("utf-8", "utf8"):
        raise UnsupportedMediaType(f"Unsupported charset {charset[:100]!r} in Content-Type; send the body as UTF-8.")
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        raise UnsupportedMediaType(f"Unsupported Content-Encoding {encoding[:100]!r}; send the body as it is.")


def _deeper_than(body: bytes, limit: int) -> bool:
    if body.count(b"[") + body.count(b"{") <= limit:
        return False
    depth = 0
    for bracket in _BRACKETS.finditer(_STRINGS.sub(b"", body)):
        depth += 1 if bracket.group() in b"[{" else -1
        if depth > limit:
            return True
    return False


def _check_text(value: Any, path: list[int | str]) -> None:
    """An escape may name half a surrogate pair, which is no character and has no UTF-8."""
    if isinstance(value, dict):
        for key, entry in value.items():
            _check_text(key, path)
            _check_text(entry, [*path, key])
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            _check_text(entry, [*path, index])
    elif isinstance(value, str) and any("\ud800" <= char <= "\udfff" for char in value):
        param = param_name(path)
        raise InvalidRequest(
            f"Invalid value for '{param}': half a surrogate pair is not a character.", code="invalid_utf8", param=param
        )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        seen: set[str] = set()
        # `add` gives None, so that the first key seen before is the first that counts.
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InvalidRequest(f"Duplicate key in the request body: {twice[:100]!r}.", code="duplicate_key", param=twice)
    return value


def _constant(name: str) -> NoReturn:
    _fail(f"The request body holds {name}, which is not valid JSON.")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        _fail("The request body holds a number that is too large.")
    return value


def _integer(digits: str) -> int:
    # Far beyond any field's range; also keeps clear of the interpreter's own limit on digits.
    if len(digits) > 40:
        _fail("The request body holds a number that is too large.")
    return int(digits)
