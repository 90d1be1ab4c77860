"""Messages know which version they need, and records of later versions are read past without losing count."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec
import pytest

from omnistage.contracts import (
    ChatMessage,
    End,
    GenerateText,
    Message,
    Sampling,
    SpeakText,
    SpeechOptions,
    UnknownRecord,
    decode_record,
    encode,
    needed_version,
    since,
)


class Options(Message, frozen=True, kw_only=True, omit_defaults=True):
    speed: float = 1.0
    pitch: Annotated[float, since(2)] = 1.0
    styles: Annotated[tuple[str, ...], since(3)] = ()
    extra: Annotated[dict[str, int], since(4)] = msgspec.field(default_factory=dict)


class Sing(Message, frozen=True, kw_only=True, omit_defaults=True, tag="sing"):
    SINCE: ClassVar[int] = 5
    melody: str = ""


class Ask(Message, frozen=True, kw_only=True, omit_defaults=True, tag="ask"):
    options: Options = Options()
    parts: tuple[Options | Sing, ...] = ()
    by_name: dict[str, Options] = msgspec.field(default_factory=dict)


@pytest.mark.parametrize(
    ("message", "needed"),
    [
        (Ask(), 1),
        (Ask(options=Options(speed=2.0)), 1),
        (Ask(options=Options(pitch=1.0)), 1),
        (Ask(options=Options(pitch=1.5)), 2),
        (Ask(options=Options(pitch=1.5, styles=("low",))), 3),
        (Ask(options=Options(extra={"a": 1})), 4),
        (Ask(parts=(Options(), Options(pitch=0.5))), 2),
        (Ask(parts=(Options(), Sing())), 5),
        (Ask(by_name={"a": Options(), "b": Options(styles=("low",))}), 3),
    ],
)
def test_a_message_needs_what_it_really_uses(message: Ask, needed: int) -> None:
    assert needed_version(message) == needed


def test_marks_change_neither_bytes_nor_schema() -> None:
    class Plain(Message, frozen=True, kw_only=True, omit_defaults=True):
        pitch: float = 1.0

    class Marked(Message, frozen=True, kw_only=True, omit_defaults=True):
        pitch: Annotated[float, since(2)] = 1.0

    assert encode(Marked(pitch=2.0)) == encode(Plain(pitch=2.0))
    shown = [msgspec.json.schema_components([kind])[1][kind.__name__]["properties"] for kind in (Plain, Marked)]
    assert shown[0] == shown[1]


def test_what_the_first_version_can_say_needs_no_other() -> None:
    route = {"thinker": "m", "talker": "v"}
    speech = SpeechOptions(voice="a", speed=1.5, seed=3, language="en")
    messages = (ChatMessage(role="user", content="hello", name="me"),)
    asked = GenerateText(
        request_id="r", pipeline="omni", node="thinker", route=route, messages=messages,
        sampling=Sampling(temperature=0.5, stop=("x",), logit_bias={1: 2.0}), speech=speech,
    )  # fmt: skip
    spoken = SpeakText(request_id="r", pipeline="speech", node="talker", route=route, speech=speech, text="hello")
    assert (needed_version(asked), needed_version(spoken)) == (1, 1)


LATER = {"type": "of_later", "request_id": "r", "edge": "a-b", "epoch": 2, "seq": 7, "more": {"deep": [1, b"x"]}}


def test_a_record_of_a_later_kind_keeps_its_place() -> None:
    record = decode_record(msgspec.msgpack.encode(LATER))
    assert record == UnknownRecord(request_id="r", edge="a-b", epoch=2, seq=7, kind="of_later")


@pytest.mark.parametrize(
    "broken",
    [
        {**LATER, "epoch": "two"},
        {key: value for key, value in LATER.items() if key != "edge"},
        {**LATER, "type": 5},
        {**LATER, "type": "end"},
        {**LATER, "type": "audio_delta"},
    ],
)
def test_a_broken_record_is_not_taken_for_a_later_one(broken: dict[str, object]) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_record(msgspec.msgpack.encode(broken))


def test_known_records_are_read_as_ever() -> None:
    end = End(request_id="r", edge="a-b", epoch=1, seq=3, count=3)
    assert decode_record(encode(end)) == end
