"""Messages: what encoding keeps, leaves out and refuses."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.contracts import (
    AudioDelta,
    Cancel,
    ChatMessage,
    End,
    GenerateText,
    Inline,
    Sampling,
    SpeakText,
    SpeechOptions,
    TensorRef,
    TextDelta,
    decode_control,
    decode_record,
    decode_work,
    encode,
    payload_nbytes,
)


def test_defaults_are_left_out() -> None:
    assert msgspec.msgpack.decode(encode(Cancel(request_id="r"))) == {"type": "cancel", "request_id": "r"}
    assert decode_control(encode(Cancel(request_id="r"))).reason == "cancelled"


@given(st.text(), st.lists(st.integers(0, 2**31 - 1)))
def test_text_and_tokens_survive(text: str, token_ids: list[int]) -> None:
    delta = TextDelta(request_id="r", edge="e", epoch=1, seq=2, text=text, token_ids=tuple(token_ids))
    assert decode_record(encode(delta)) == delta


def test_samples_survive() -> None:
    samples = np.array([-32768, -1, 0, 1, 32767], dtype="<i2")
    payload = Inline(data=samples.tobytes(), dtype="int16", shape=samples.shape)
    delta = decode_record(
        encode(AudioDelta(request_id="r", edge="e", epoch=1, payload=payload, sample_rate_hz=24000, offset=0))
    )
    assert isinstance(delta, AudioDelta)
    assert isinstance(delta.payload, Inline)
    np.testing.assert_array_equal(np.frombuffer(delta.payload.data, delta.payload.dtype), samples)


def test_payloads_know_their_size() -> None:
    assert payload_nbytes(Inline(data=b"abcd", dtype="int16", shape=(2,))) == 4
    assert payload_nbytes(TensorRef(place="shm", id="a", dtype="float32", shape=(5,), nbytes=20)) == 20


def test_absent_and_empty_text_differ() -> None:
    def work(text: str | None) -> SpeakText:
        speech = SpeechOptions(voice="heart")
        return SpeakText(request_id="r", pipeline="speech", node="talker", route={}, speech=speech, text=text)

    spoken, streamed = decode_work(encode(work(""))), decode_work(encode(work(None)))
    assert isinstance(spoken, SpeakText)
    assert isinstance(streamed, SpeakText)
    assert (spoken.text, streamed.text) == ("", None)


def test_roles_are_checked() -> None:
    message = ChatMessage(role="user", content="hello")
    work = GenerateText(
        request_id="r", pipeline="text", node="thinker", route={}, messages=(message,), sampling=Sampling()
    )
    body = encode(work).replace(b"user", b"boss")
    with pytest.raises(msgspec.ValidationError, match=r"\$\.messages\[0\]\.role"):
        decode_work(body)


def test_numbers_are_not_read_from_text() -> None:
    body = msgspec.msgpack.encode({"type": "end", "request_id": "r", "edge": "e", "epoch": "1", "count": 0})
    with pytest.raises(msgspec.ValidationError, match="epoch"):
        decode_record(body)


def test_equal_messages_are_equal_values() -> None:
    assert End(request_id="r", edge="e", epoch=1, count=3) == End(request_id="r", edge="e", epoch=1, count=3)
    assert len({encode(End(request_id="r", edge="e", epoch=1, count=3)) for _ in range(3)}) == 1


def test_deep_nesting_is_a_decode_error() -> None:
    with pytest.raises(msgspec.DecodeError, match="nested too deeply"):
        decode_work(b"\x82\xa1x" + b"\x91" * 100_000)
