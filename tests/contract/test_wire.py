"""The wire stays readable: for today's decoder, for any MessagePack client, and for messages of other releases."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnistage.contracts import (
    CONTRACT_VERSION,
    AnyRecord,
    AnyWork,
    AudioDelta,
    Control,
    Message,
    decode_control,
    decode_record,
    decode_work,
    encode,
)

GOLDEN = Path(__file__).parent / "golden"
FILES = sorted(GOLDEN.glob("v1.*/*.msgpack"))
CLASSES: tuple[tuple[Any, Any], ...] = (
    (AnyWork, decode_work),
    (AnyRecord, decode_record),
    (Control, decode_control),
)
KINDS: dict[str, tuple[type[Message], Any]] = {
    str(kind.__struct_config__.tag): (kind, decode) for union, decode in CLASSES for kind in union.__args__
}


def _kind(file: Path) -> tuple[type[Message], Any]:
    return KINDS[file.name.partition(".")[0]]


def test_every_message_has_golden_bytes_of_this_version() -> None:
    folder = GOLDEN / f"v1.{CONTRACT_VERSION}"
    assert {file.name for file in folder.glob("*.msgpack")} == {
        f"{tag}{suffix}.msgpack" for tag in KINDS for suffix in ("", ".minimal")
    }


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_golden_bytes_are_read_and_written_again(file: Path) -> None:
    body = file.read_bytes()
    kind, decode = _kind(file)
    message = decode(body)
    assert type(message) is kind
    assert encode(message) == body


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_any_messagepack_client_reads_the_same(file: Path) -> None:
    content = msgpack.unpackb(file.read_bytes(), strict_map_key=False)
    shown = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    rewritten = json.dumps(content, default=lambda value: base64.b64encode(value).decode())
    assert json.loads(rewritten) == shown
    assert content["type"] == file.name.partition(".")[0]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_any_messagepack_client_can_write_it(file: Path) -> None:
    body = file.read_bytes()
    kind, decode = _kind(file)
    content = msgpack.unpackb(body, strict_map_key=False)
    shuffled = dict(reversed(content.items()))
    message = decode(msgpack.packb(shuffled))
    assert isinstance(message, kind)
    assert encode(message) == body


@pytest.mark.parametrize("tag", KINDS)
def test_full_examples_set_every_field_and_minimal_ones_the_required(tag: str) -> None:
    kind, _ = KINDS[tag]
    fields = msgspec.structs.fields(kind)
    folder = GOLDEN / f"v1.{CONTRACT_VERSION}"
    full = msgpack.unpackb((folder / f"{tag}.msgpack").read_bytes(), strict_map_key=False)
    minimal = msgpack.unpackb((folder / f"{tag}.minimal.msgpack").read_bytes(), strict_map_key=False)
    assert set(full) == {field.encode_name for field in fields} | {"type"}
    assert set(minimal) == {field.encode_name for field in fields if field.required} | {"type"}


@pytest.mark.parametrize("tag", KINDS)
def test_fields_of_a_later_release_are_skipped(tag: str) -> None:
    _, decode = KINDS[tag]
    body = (GOLDEN / f"v1.{CONTRACT_VERSION}" / f"{tag}.msgpack").read_bytes()
    content = msgpack.unpackb(body, strict_map_key=False)
    later = {"a_field_of_later": {"deep": [1, 2]}, **content, "another": None}
    assert encode(decode(msgpack.packb(later))) == body


@pytest.mark.parametrize("tag", KINDS)
def test_a_missing_required_field_is_refused_by_name(tag: str) -> None:
    kind, decode = KINDS[tag]
    body = (GOLDEN / f"v1.{CONTRACT_VERSION}" / f"{tag}.minimal.msgpack").read_bytes()
    for field in msgspec.structs.fields(kind):
        if field.required:
            content: dict[str, Any] = msgpack.unpackb(body, strict_map_key=False)
            del content[field.encode_name]
            with pytest.raises(msgspec.ValidationError, match=field.encode_name):
                decode(msgpack.packb(content))


@pytest.mark.parametrize("decode", [decode_work, decode_record, decode_control])
def test_unknown_and_foreign_messages_are_refused(decode: Any) -> None:
    foreign: list[Any] = [{"type": "of_later"}, {}, [], "text", 1, None, {"type": 5}]
    for content in foreign:
        with pytest.raises(msgspec.ValidationError):
            decode(msgpack.packb(content))


def test_messages_of_one_class_are_not_read_as_another() -> None:
    body = (GOLDEN / f"v1.{CONTRACT_VERSION}" / "generate_text.msgpack").read_bytes()
    for decode in (decode_record, decode_control):
        with pytest.raises(msgspec.ValidationError):
            decode(body)


def test_wrong_types_are_refused_with_the_path() -> None:
    body = (GOLDEN / f"v1.{CONTRACT_VERSION}" / "audio_delta.msgpack").read_bytes()
    content = msgpack.unpackb(body)
    content["payload"]["shape"] = ["two"]
    with pytest.raises(msgspec.ValidationError, match=r"\$\.payload\.shape"):
        decode_record(msgpack.packb(content))


def test_messages_are_values() -> None:
    message = decode_record((GOLDEN / f"v1.{CONTRACT_VERSION}" / "audio_delta.msgpack").read_bytes())
    assert isinstance(message, AudioDelta)
    with pytest.raises(AttributeError):
        message.offset = 3  # type: ignore[misc]


def _refuses_or_reads(decode: Any, body: bytes) -> None:
    try:
        message = decode(body)
    except msgspec.MsgspecError:
        return
    assert isinstance(message, Message)


@given(st.binary(max_size=400))
@settings(deadline=None, max_examples=300)
def test_arbitrary_bytes_raise_nothing_but_our_errors(body: bytes) -> None:
    for decode in (decode_work, decode_record, decode_control):
        _refuses_or_reads(decode, body)


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_damaged_messages_raise_nothing_but_our_errors(data: st.DataObject) -> None:
    file = data.draw(st.sampled_from(FILES))
    body = bytearray(file.read_bytes())
    for position in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=4)):
        body[position] = data.draw(st.integers(0, 255))
    _refuses_or_reads(_kind(file)[1], bytes(body[: data.draw(st.integers(0, len(body)))]))


_anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.sampled_from(FILES), st.data())
@settings(deadline=None, max_examples=300)
def test_values_of_the_wrong_kind_raise_nothing_but_our_errors(file: Path, data: st.DataObject) -> None:
    content = msgpack.unpackb(file.read_bytes(), strict_map_key=False)
    content[data.draw(st.sampled_from(sorted(content)))] = data.draw(_anything)
    _refuses_or_reads(_kind(file)[1], msgpack.packb(content))


def test_deep_nesting_raises_nothing_but_our_errors() -> None:
    for decode in (decode_work, decode_record, decode_control):
        _refuses_or_reads(decode, b"\x91" * 100_000)
        _refuses_or_reads(decode, b"\x82\xa1x" + b"\x91" * 100_000)
