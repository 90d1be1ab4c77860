"""How long a client is willing to wait: a header of our own, since OpenAI's API has none."""

from __future__ import annotations

from starlette.datastructures import Headers

from omnistage.errors import InvalidRequest

HEADER = "x-omnistage-deadline-ms"
"""Milliseconds from the request's arrival to its last byte; after that the answer is a 504."""

_DIGITS = 9


def asked_deadline_s(headers: Headers) -> float | None:
    """The deadline that the client asks for, in seconds from now; None if it leaves that to the model.

    Raises:
        InvalidRequest: it is no positive whole number of milliseconds.
    """
    value = headers.get(HEADER)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= _DIGITS and int(value) > 0):
        raise InvalidRequest(
            f"Invalid value for '{HEADER}': a positive number of milliseconds was expected.", param=HEADER
        )
    return int(value) / 1000
