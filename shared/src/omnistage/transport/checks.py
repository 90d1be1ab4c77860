"""Checks that every bus makes before anything leaves the process."""

from __future__ import annotations

import re

from omnistage.errors import ConfigError, MessageTooLarge
from omnistage.subjects import FEED, OUT, WORK, Parsed, parse
from omnistage.transport.bus import MAX_BODY_BYTES

_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def check_body(body: bytes) -> None:
    """Raises MessageTooLarge if the body is over the bus's limit."""
    if len(body) > MAX_BODY_BYTES:
        raise MessageTooLarge(f"a body of {len(body)} bytes is over the bus's limit of {MAX_BODY_BYTES}")


def work_subject(subject: str, namespace: str) -> Parsed:
    """The parts of a work subject. Raises ConfigError for any other."""
    parsed = parse(subject)
    if parsed.kind != WORK or parsed.namespace != namespace:
        raise ConfigError(f"{subject!r} is no work subject of namespace {namespace!r}")
    return parsed


def log_subject(subject: str, namespace: str) -> Parsed:
    """The parts of a feed or out subject. Raises ConfigError for any other."""
    parsed = parse(subject)
    if parsed.kind not in (FEED, OUT) or parsed.edge is None or parsed.namespace != namespace:
        raise ConfigError(f"{subject!r} is no feed or out subject of namespace {namespace!r}")
    return parsed


def check_key(key: str) -> None:
    """Raises ConfigError if the key cannot stand in a key-value bucket."""
    if not _KEY.fullmatch(key):
        raise ConfigError(f"{key!r} cannot be a key")
