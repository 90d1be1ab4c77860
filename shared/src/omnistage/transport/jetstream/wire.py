"""What JetStream says, in our terms: headers, status codes, error numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from nats.aio.msg import Msg

from omnistage.errors import BusUnavailable, Fenced, OmnistageError, QueueFull
from omnistage.transport.bus import Message

EXPECTED_LAST = "Nats-Expected-Last-Subject-Sequence"
ROLLUP = "Nats-Rollup"
_SUBJECT, _SEQUENCE, _LAST, _PENDING, _STATUS = (
    "Nats-Subject",
    "Nats-Sequence",
    "Nats-Last-Sequence",
    "Nats-Num-Pending",
    "Status",
)
_OWN_HEADERS = "Nats-"

# Error numbers of nats-server (server/errors.json).
WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
STORE_FAILED = 10077
STORAGE_EXHAUSTED = frozenset({10023, 10028, 10047})
STREAM_NAME_IN_USE = 10058
STREAM_NOT_FOUND = 10059
CONSUMER_NOT_FOUND = 10014

NO_RESPONDERS = "503"
END_OF_BATCH = "204"
NOT_FOUND = "404"
HEARTBEAT = "100"
PULL_ENDED = frozenset({NOT_FOUND, "408"})
"""A pull request was answered with nothing, or ran out of time: ask again."""


class ApiError(Exception):
    """The broker refused a request: its number and its words."""

    def __init__(self, code: int, number: int, description: str) -> None:
        super().__init__(f"{description} (code {code}, error {number})")
        self.code = code
        self.number = number
        self.description = description

    def mapped(self) -> OmnistageError:
        """The error as the rest of the system knows it."""
        if self.number in WRONG_LAST_SEQUENCE:
            return Fenced(f"another holder has taken this log, or it was purged: {self.description}")
        if self.number == STORE_FAILED or self.number in STORAGE_EXHAUSTED:
            return QueueFull(f"the broker takes no more: {self.description}", retry_after_s=1.0)
        return BusUnavailable(f"the broker refused: {self}")


def decoded(body: bytes) -> dict[str, Any]:
    """A reply of the broker's API. Raises ApiError if it is a refusal."""
    reply = msgspec.json.decode(body, type=dict[str, Any])
    error = reply.get("error")
    if error is not None:
        raise ApiError(error.get("code", 0), error.get("err_code", 0), error.get("description", ""))
    return reply


def status(raw: Msg) -> str | None:
    """Status code of a message that the server made up; None for a real one."""
    return raw.headers.get(_STATUS) if raw.headers and not raw.data else None


def remaining(raw: Msg) -> int:
    """How many records the end of a batch says are still to be read."""
    return int((raw.headers or {}).get(_PENDING, "0"))


def plain_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """Headers without those that the broker understands or added."""
    return {k: v for k, v in headers.items() if not k.startswith(_OWN_HEADERS)} if headers else {}


def stored(raw: Msg, previous: int | None = None) -> Message:
    """A record as republished or read from its stream; `previous` where the server does not say it."""
    headers = raw.headers or {}
    return Message(
        subject=headers.get(_SUBJECT, raw.subject),
        body=raw.data,
        headers=plain_headers(headers),
        sequence=int(headers[_SEQUENCE]),
        previous=int(headers.get(_LAST, "0")) if previous is None else previous,
    )


def delivery(raw: Msg) -> tuple[int, int]:
    """Stream sequence and delivery count of a claimed item, from its ack subject.

    `$JS.ACK.<stream>.<consumer>.<delivered>.<stream seq>…`, or with domain and account hash after `$JS.ACK`.
    """
    parts = raw.reply.split(".")
    start = 4 if len(parts) == 9 else 6
    return int(parts[start + 1]), int(parts[start])
