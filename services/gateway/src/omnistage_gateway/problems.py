"""Errors in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from omnistage.errors import InvalidRequest, OmnistageError

UNSUPPORTED = "unsupported_value"
"""Type of a fault, and code of an error: OpenAI knows the value, this model cannot honour it."""

MISSING = "missing_required_parameter"

_MAX_PARAM_CHARS = 200

_TYPES = {
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


_REASONS = {
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "dict_type": "must be an object",
    "list_type": "must be an array",
    "string_type": "must be a string",
    "bool_type": "must be true or false",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    # No field of ours asks for more than one entry or character.
    "too_short": "must not be empty",
    "string_too_short": "must not be empty",
}


def missing(param: str, hint: str = "") -> InvalidRequest:
    """A field that the request must have."""
    return InvalidRequest(
        f"Missing required parameter: '{param}'{f' ({hint})' if hint else ''}.", code=MISSING, param=param
    )


def error_type(status: int) -> str:
    """The `type` that goes with an HTTP status."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")


def http_status(error: OmnistageError) -> int:
    """The error's own status where HTTP has it: 4xx, 500, 503, 504; anything else is a 500."""
    return error.status if 400 <= error.status < 500 or error.status in (500, 503, 504) else 500


def error_body(error: OmnistageError) -> dict[str, Any]:
    """The JSON of an error answer; also sent as an event when a stream breaks."""
    detail: dict[str, Any] = {
        "message": error.message,
        "type": error_type(http_status(error)),
        "param": error.param,
        "code": error.code,
    }
    if error.stage is not None:
        detail["stage"] = error.stage
    return {"error": detail}


def retry_after(seconds: float) -> int:
    """When to come back, in whole seconds, at least 1."""
    return max(1, math.ceil(seconds))


def error_headers(error: OmnistageError) -> dict[str, str]:
    """Retry-After in whole seconds, at least 1, where the error knows it; the challenge of a 401.

    A 408 closes its connection: the rest of that request may still come (RFC 9110, section 15.5.9).
    """
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(retry_after(error.retry_after_s))
    if error.status == 408:
        headers["connection"] = "close"
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return headers


def from_validation(error: ValidationError, body: Any) -> InvalidRequest:
    """The most telling fault of a body that does not fit its schema, as a 400 that names the field."""
    faults = error.errors(include_url=False, include_input=False, include_context=True)
    first = faults[0]["loc"][:1]
    # A union reports every branch; the one that the client meant is the one that got deepest and whose type fitted.
    fault = max(
        (fault for fault in faults if fault["loc"][:1] == first),
        key=lambda fault: (len(_path(fault, body)), not fault["type"].endswith("_type")),
    )
    param = param_name(_path(fault, body))[:_MAX_PARAM_CHARS]
    message, code = _explain(fault, param)
    return InvalidRequest(message, code=code, param=param or None)


def _explain(fault: Mapping[str, Any], param: str) -> tuple[str, str]:
    """Message and code of one of pydantic's faults."""
    kind = fault["type"]
    if kind in ("missing", "union_tag_not_found"):
        return f"Missing required parameter: '{param}'.", MISSING
    if kind == "extra_forbidden":
        return f"Unknown parameter: '{param}'.", "unknown_parameter"
    reason = _reason(fault)
    where = f"Invalid value for '{param}': " if param else "Invalid request body: "
    if kind == UNSUPPORTED:
        return f"{where}{reason}.", UNSUPPORTED
    return f"{where}{reason}.", "invalid_type" if kind.endswith("_type") else "invalid_value"


def _reason(fault: Mapping[str, Any]) -> str:
    """What is wrong, in JSON's words rather than the validator's."""
    kind, context = fault["type"], fault.get("ctx", {})
    if kind in _REASONS:
        return _REASONS[kind]
    if kind == "too_long":
        return f"must not have more than {context['max_length']} entries"
    if kind == "string_too_long":
        return f"must not have more than {context['max_length']} characters"
    if kind in ("union_tag_invalid", "literal_error"):
        # Written as 'a', 'b' or 'c'; no value of ours holds a quote.
        allowed = str(context.get("expected_tags") or context.get("expected")).split("'")[1::2]
        return ("must be one of: " if len(allowed) > 1 else "must be ") + ", ".join(allowed)
    return str(fault["msg"]).rstrip(".").replace("Input should ", "must ").replace("String should ", "must ")


def _path(fault: Mapping[str, Any], body: Any) -> list[int | str]:
    """The location of a fault without the names of union branches: only keys and indexes that the body has."""
    kind, loc = fault["type"], fault["loc"]
    path: list[int | str] = []
    here = body
    for number, part in enumerate(loc):
        last = number == len(loc) - 1
        if _has(here, part):
            here = here[part]
        elif not (last and kind == "missing"):
            continue
        path.append(part)
    if kind.startswith("union_tag_"):
        path.append(fault["ctx"]["discriminator"].strip("'"))
    return path


def _has(value: Any, part: int | str) -> bool:
    if isinstance(part, int):
        return isinstance(value, list) and part < len(value)
    return isinstance(value, dict) and part in value


def param_name(path: Sequence[int | str]) -> str:
    """As OpenAI writes it: messages.[0].content."""
    return ".".join(f"[{part}]" if isinstance(part, int) else part for part in path)
