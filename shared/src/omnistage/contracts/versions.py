"""Which version of the contracts a message needs its reader to speak. Imports msgspec and the standard library only.

Versions are minor ones: the major version is in the subjects ("v1").
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import msgspec

FIRST_VERSION = 1
"""What everybody speaks."""

_SINCE = "since"


def since(version: int) -> msgspec.Meta:
    """Marks a field that a later version brought and that must not be ignored where it is set.

    `pitch: Annotated[float, since(2)] = 1.0` sends work with another pitch to readers of version 2 alone. Without a
    mark a new field is a hint: readers of earlier versions get the message too, and skip it.
    """
    return msgspec.Meta(extra={_SINCE: version})


def needed_version(value: object) -> int:
    """The lowest version whose reader understands all that a message says and must not be ignored.

    A whole message counts from its `SINCE` on, a field that is marked with `since` where it is not at its default.
    """
    if isinstance(value, msgspec.Struct):
        return max(getattr(value, "SINCE", FIRST_VERSION), _highest(_of_fields(value)))
    if isinstance(value, Mapping):
        return _highest(needed_version(item) for item in value.values())
    if isinstance(value, tuple | list):
        return _highest(needed_version(item) for item in value)
    return FIRST_VERSION


def _of_fields(message: msgspec.Struct) -> Iterable[int]:
    for name, version, default in _fields(type(message)):
        value = getattr(message, name)
        if version > FIRST_VERSION and value != default():
            yield version
        yield needed_version(value)


def _highest(versions: Iterable[int]) -> int:
    return max(versions, default=FIRST_VERSION)


@cache
def _fields(kind: type[msgspec.Struct]) -> tuple[tuple[str, int, Callable[[], Any]], ...]:
    """Name, version and maker of the default of each field."""
    hints = typing.get_type_hints(kind, include_extras=True)
    return tuple((field.name, _version(hints[field.name]), _default(field)) for field in msgspec.structs.fields(kind))


def _version(hint: Any) -> int:
    marks = getattr(hint, "__metadata__", ())
    return _highest(mark.extra[_SINCE] for mark in marks if isinstance(mark, msgspec.Meta) and mark.extra)


def _default(field: msgspec.structs.FieldInfo) -> Callable[[], Any]:
    if field.default_factory is not msgspec.NODEFAULT:
        made: Callable[[], Any] = field.default_factory
        return made
    return lambda: field.default
