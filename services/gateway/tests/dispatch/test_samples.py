"""Audio in order: whatever overlaps is dropped, whatever is missing is an error."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.contracts import AudioDelta, Inline
from omnistage.errors import StageFailed
from omnistage_gateway.dispatch.samples import SampleOrder, to_int16


def delta(start: int, stop: int, *, rate: int = 24000, segment: int = 0, text: str = "") -> AudioDelta:
    payload = Inline(data=np.arange(start, stop, dtype=np.int16).tobytes(), dtype="int16", shape=(stop - start,))
    return AudioDelta(
        request_id="r", edge="codec-gateway", epoch=1, payload=payload, sample_rate_hz=rate, offset=start,
        segment=segment, text=text,
    )  # fmt: skip


def samples_of(piece: AudioDelta) -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    assert isinstance(piece.payload, Inline)
    return np.frombuffer(piece.payload.data, dtype=np.int16)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=20))
def test_any_overlapping_cover_gives_every_sample_once_in_order(steps: list[tuple[int, int]]) -> None:
    order = SampleOrder()
    pieces = []
    for back, length in steps:
        start = max(0, order.position - back)
        piece = delta(start, start + length)
        had = order.has(piece, length)
        taken = order.take(piece, samples_of(piece))
        assert had == (taken is None)
        if taken is not None:
            pieces.append(taken.samples)
    joined = np.concatenate(pieces) if pieces else np.empty(0, np.int16)
    assert joined.tolist() == list(range(order.position))


@given(st.integers(1, 1000), st.integers(1, 1000))
def test_a_gap_is_an_error_of_its_size(length: int, gap: int) -> None:
    order = SampleOrder()
    first = delta(0, length)
    order.take(first, samples_of(first))
    late = delta(length + gap, length + gap + 1)
    with pytest.raises(StageFailed, match=f"^{gap} samples are missing") as failed:
        order.take(late, samples_of(late))
    assert failed.value.code == "audio_gap"


def test_the_rate_may_not_change() -> None:
    order = SampleOrder()
    order.take(delta(0, 4), samples_of(delta(0, 4)))
    with pytest.raises(StageFailed, match="from 24000 to 16000"):
        order.take(delta(4, 8, rate=16000), samples_of(delta(4, 8)))


def test_a_segment_is_titled_once_even_if_its_first_piece_is_repeated_or_empty() -> None:
    order = SampleOrder()

    def text_of(piece: AudioDelta) -> str | None:
        taken = order.take(piece, samples_of(piece))
        return None if taken is None else taken.text

    assert text_of(delta(0, 4, text="One.")) == "One."
    assert text_of(delta(0, 4, text="One.")) is None
    assert text_of(delta(2, 8, text="One.")) == ""
    assert text_of(delta(8, 8, segment=1, text="Two.")) == "Two."
    assert text_of(delta(8, 9, segment=1)) == ""


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_floats_become_int16_and_are_clipped(dtype: str) -> None:
    values = np.array([0.0, 1.0, -1.0, 1.5, -2.0, 0.5], dtype=dtype)
    result = to_int16(values)
    assert result.dtype == np.int16
    assert result.tolist() == [0, 32767, -32767, 32767, -32767, 16384]


@pytest.mark.parametrize(
    "samples", [np.zeros((2, 2), np.int16), np.zeros(3, np.int32), np.array([0.0, np.nan]), np.array([np.inf])]
)
def test_what_is_no_mono_audio_is_refused(samples: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> None:
    with pytest.raises(StageFailed) as failed:
        to_int16(samples)
    assert failed.value.code == "bad_audio"
