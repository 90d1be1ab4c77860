"""Messages of neighbouring releases are read by one another, whatever they say.

The current contracts stand between an earlier release, which lacks some optional fields, and a later one, which has
more of them and more kinds of messages.
"""

from __future__ import annotations

import importlib
import sys
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.releases import LATER_NAMES, contracts_alone, next_release, without_field

from omnistage import contracts as current
from omnistage.contracts import UnknownRecord

EARLIER_LACKS = {
    "talker.py": (("SpeechOptions", "language"), ("SpeechOptions", "instructions")),
    "codec.py": (("FrameChunk", "segment_end"), ("FrameChunk", "segment_frame")),
    "output.py": (("TextDelta", "token_ids"), ("TextDone", "cached_tokens")),
    "control.py": (("Presence", "locality"), ("EngineStatus", "service_s")),
    "thinker.py": (("Sampling", "logit_bias"),),
}
"""Optional fields, whose names no other message has."""

GOLDEN = sorted((Path(__file__).parent / "golden").glob("v1.*/*.msgpack"))
UNIONS = {"AnyWork": "decode_work", "AnyRecord": "decode_record", "Control": "decode_control"}
_DEPTH = 3
_LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(max_size=8),
    int: st.integers(-(2**53), 2**53),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    bytes: st.binary(max_size=8),
    type(None): st.none(),
}


@dataclass(frozen=True)
class Pair:
    """Two neighbouring releases.

    Attributes:
        new_fields: names of the fields that only the newer one has.
    """

    older: Any
    newer: Any
    new_fields: frozenset[str]


@pytest.fixture(scope="module", params=["earlier and current", "current and later"])
def pair(request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("releases")
    name = "earlier_contracts" if request.param.startswith("earlier") else "later_contracts"
    if name == "later_contracts":
        contracts_alone(next_release(root, folder).folder, folder, name)
    else:
        contracts_alone(root / "shared" / "src", folder, name)
        for file, fields in EARLIER_LACKS.items():
            for kind, field in fields:
                without_field(folder / name / file, kind, field)
    sys.path.insert(0, str(folder))
    try:
        other = importlib.import_module(name)
    finally:
        sys.path.remove(str(folder))
    if name == "later_contracts":
        yield Pair(current, other, LATER_NAMES)
    else:
        yield Pair(other, current, frozenset(field for fields in EARLIER_LACKS.values() for _, field in fields))
    for module in [module for module in sys.modules if module.partition(".")[0] == name]:
        del sys.modules[module]


def kinds(contracts: Any) -> dict[str, tuple[type[Any], Any]]:
    """Tag -> message and its decoder."""
    return {
        str(kind.__struct_config__.tag): (kind, getattr(contracts, decode))
        for union, decode in UNIONS.items()
        for kind in typing.get_args(getattr(contracts, union))
    }


def values(hint: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Anything of a type; optional fields are often left out."""
    if hint in _LEAVES:
        return _LEAVES[hint]
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return messages(hint, depth)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(values(argument, depth) for argument in arguments))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        assert arguments[1:] == (...,), hint
        return st.lists(values(arguments[0], depth), max_size=2 if depth < _DEPTH else 0).map(tuple)
    assert origin is dict, hint
    return st.dictionaries(values(arguments[0], depth), values(arguments[1], depth), max_size=2)


def messages(kind: type[msgspec.Struct], depth: int = 0) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    if depth > _DEPTH:
        fields = {field.name: hints[field.name] for field in msgspec.structs.fields(kind) if field.required}
        return st.fixed_dictionaries({name: values(hint, depth + 1) for name, hint in fields.items()}).map(_made(kind))
    required: dict[str, Any] = {}
    optional: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        (required if field.required else optional)[field.name] = values(hints[field.name], depth + 1)
    return st.fixed_dictionaries(required, optional=optional).map(_made(kind))


def _made(kind: type[msgspec.Struct]) -> Any:
    return lambda fields: kind(**fields)


def without(content: Any, names: frozenset[str]) -> Any:
    """Unpacked content without these fields, at any depth."""
    if isinstance(content, dict):
        return {key: without(value, names) for key, value in content.items() if key not in names}
    return [without(value, names) for value in content] if isinstance(content, list) else content


def unpacked(body: bytes) -> Any:
    return msgpack.unpackb(body, strict_map_key=False)


COMMON = settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))


@COMMON
@given(data=st.data())
def test_what_the_newer_release_says_is_read_by_the_older_one(pair: Pair, data: st.DataObject) -> None:
    tag = data.draw(st.sampled_from(sorted(kinds(pair.older))))
    body = pair.newer.encode(data.draw(messages(kinds(pair.newer)[tag][0])))
    kind, decode = kinds(pair.older)[tag]
    read = decode(body)
    assert type(read) is kind
    assert unpacked(pair.older.encode(read)) == without(unpacked(body), pair.new_fields)


@COMMON
@given(data=st.data())
def test_what_the_older_release_says_is_read_by_the_newer_one(pair: Pair, data: st.DataObject) -> None:
    tag = data.draw(st.sampled_from(sorted(kinds(pair.older))))
    body = pair.older.encode(data.draw(messages(kinds(pair.older)[tag][0])))
    kind, decode = kinds(pair.newer)[tag]
    read = decode(body)
    assert type(read) is kind
    assert pair.newer.encode(read) == body


@COMMON
@given(data=st.data())
def test_work_that_sets_a_field_which_must_not_be_ignored_says_so(pair: Pair, data: st.DataObject) -> None:
    kind = kinds(pair.newer)["speak_text"][0]
    work = data.draw(messages(kind))
    pitched = getattr(work.speech, "pitch", 1.0) != 1.0
    assert pair.newer.needed_version(work) == (current.CONTRACT_VERSION + 1 if pitched else current.FIRST_VERSION)


@COMMON
@given(data=st.data())
def test_kinds_that_only_the_newer_release_has(pair: Pair, data: st.DataObject) -> None:
    new = sorted(set(kinds(pair.newer)) - set(kinds(pair.older)))
    if pair.older is not current:
        assert new == []
        return
    assert new == ["edge_mark", "hint", "sing_text"]
    mark = data.draw(messages(kinds(pair.newer)["edge_mark"][0]))
    read = current.decode_record(pair.newer.encode(mark))
    assert read == UnknownRecord(
        request_id=mark.request_id, edge=mark.edge, epoch=mark.epoch, seq=mark.seq, kind="edge_mark"
    )
    for tag, decode in (("hint", current.decode_control), ("sing_text", current.decode_work)):
        message = data.draw(messages(kinds(pair.newer)[tag][0]))
        with pytest.raises(msgspec.ValidationError):
            decode(pair.newer.encode(message))
    assert pair.newer.needed_version(message) == current.CONTRACT_VERSION + 1


@pytest.mark.parametrize("file", GOLDEN, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_golden_bytes_are_read_by_every_release(pair: Pair, file: Path) -> None:
    body = file.read_bytes()
    known = kinds(pair.newer)[file.name.partition(".")[0]]
    assert pair.newer.encode(known[1](body)) == body
    kind, decode = kinds(pair.older)[file.name.partition(".")[0]]
    read = decode(body)
    assert type(read) is kind
    lacking = pair.new_fields if pair.older is not current else frozenset()
    assert unpacked(pair.older.encode(read)) == without(unpacked(body), lacking)
