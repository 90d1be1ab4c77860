"""The schemas of the wire change by addition only, within a major version."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from omnistage.contracts import (
    CONTRACT_VERSION,
    AnyRecord,
    AnyWork,
    AudioDone,
    Control,
    Message,
    SpeechAbilities,
    SpeechOptions,
    VoiceReference,
    since,
)

GOLDEN = Path(__file__).parent / "golden"
VERSIONS = sorted(int(folder.name.removeprefix("v1.")) for folder in GOLDEN.glob("v1.*"))


def _schema(version: int) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((GOLDEN / f"v1.{version}" / "schema.json").read_text(encoding="utf-8"))
    return content


def removed_or_changed(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """What a reader of the old schema would miss in the new one."""
    faults = []
    for name, before in old["components"].items():
        after = new["components"].get(name)
        if after is None:
            faults.append(f"{name} is gone")
            continue
        for field, kind in before.get("properties", {}).items():
            if after["properties"].get(field) != kind:
                faults.append(f"{name}.{field} is gone or has another type")
        if set(after.get("required", [])) - set(before.get("required", [])):
            faults.append(f"{name} requires more than before")
    for union, before in old["unions"].items():
        members = {entry["$ref"] for entry in new["unions"][union]["anyOf"]}
        if not {entry["$ref"] for entry in before["anyOf"]} <= members:
            faults.append(f"union {union} lost a member")
    return faults


def test_versions_are_complete() -> None:
    assert list(range(1, CONTRACT_VERSION + 1)) == VERSIONS


def test_the_current_schema_is_the_committed_one(root: Path, tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, root / "tools" / "golden.py", tmp_path], check=True, timeout=60, capture_output=True
    )
    written = (tmp_path / f"v1.{CONTRACT_VERSION}" / "schema.json").read_text(encoding="utf-8")
    assert json.loads(written) == _schema(CONTRACT_VERSION)


@pytest.mark.parametrize("version", VERSIONS)
def test_nothing_was_removed_or_retyped(version: int) -> None:
    assert removed_or_changed(_schema(version), _schema(CONTRACT_VERSION)) == []


def _marks(kind: Any, seen: set[type]) -> Iterator[int]:
    """Versions that a type and all that it may hold are marked with."""
    for argument in (*typing.get_args(kind), *getattr(kind, "__metadata__", ())):
        if isinstance(argument, msgspec.Meta):
            yield from (argument.extra or {}).values()
        else:
            yield from _marks(argument, seen)
    if isinstance(kind, type) and issubclass(kind, Message) and kind not in seen:
        seen.add(kind)
        yield kind.SINCE
        for hint in typing.get_type_hints(kind, include_extras=True).values():
            yield from _marks(hint, seen)


def test_no_mark_is_of_a_version_that_does_not_exist() -> None:
    """A mark beyond the current version would keep the work from every reader."""
    seen: set[type] = set()
    marks = {mark for union in (AnyWork, AnyRecord, Control) for mark in _marks(union, seen)}
    assert marks <= set(range(1, CONTRACT_VERSION + 1))
    assert {SpeechOptions, VoiceReference, AudioDone, SpeechAbilities} <= seen


def test_marks_are_found_wherever_they_are() -> None:
    class Inner(Message, frozen=True, kw_only=True, omit_defaults=True):
        pitch: typing.Annotated[float, since(7)] = 1.0

    class Outer(Message, frozen=True, kw_only=True, omit_defaults=True):
        SINCE: typing.ClassVar[int] = 3
        parts: tuple[Inner | None, ...] = ()

    Outer.__annotations__["parts"] = tuple[Inner | None, ...]
    Inner.__annotations__["pitch"] = typing.Annotated[float, since(7)]
    assert set(_marks(Outer | None, set())) == {1, 3, 7}


def test_the_comparison_finds_faults() -> None:
    old = _schema(CONTRACT_VERSION)
    broken = copy.deepcopy(old)
    del broken["components"]["AudioDelta"]["properties"]["offset"]
    broken["components"]["Cancel"]["properties"]["reason"] = {"type": "integer"}
    broken["components"]["Cancel"]["required"].append("reason")
    del broken["components"]["Ping"]
    broken["unions"]["work"]["anyOf"].pop()
    assert len(removed_or_changed(old, broken)) == 5
