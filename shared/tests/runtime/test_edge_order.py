"""The rules of an edge: once each, in order, nothing missing, old holders ignored."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.contracts import End, Failed, Failure, Opened, Record, TextChunk
from omnistage.errors import InvalidRequest, StageFailed
from omnistage.runtime.edges import EdgeOrder

EDGE = "thinker-talker"


def chunk(seq: int, epoch: int = 1) -> TextChunk:
    return TextChunk(request_id="r", edge=EDGE, epoch=epoch, seq=seq, text=f"t{seq}")


def opened(epoch: int, seq: int = 0) -> Opened:
    return Opened(request_id="r", edge=EDGE, epoch=epoch, seq=seq, instance="i")


def end(count: int, epoch: int = 1) -> End:
    return End(request_id="r", edge=EDGE, epoch=epoch, seq=count, count=count)


def test_data_passes_once_and_in_order() -> None:
    order = EdgeOrder(EDGE)
    assert order.accept(opened(1)) is None
    assert order.accept(chunk(0)) == chunk(0)
    assert order.accept(chunk(0)) is None
    assert order.accept(chunk(1)) == chunk(1)
    assert order.accept(end(2)) is None
    assert order.ended


def test_a_new_holder_goes_on_where_the_old_one_stopped_and_the_old_one_is_ignored() -> None:
    order = EdgeOrder(EDGE)
    order.accept(opened(1))
    order.accept(chunk(0))
    order.accept(opened(2, seq=1))
    assert order.accept(chunk(1, epoch=1)) is None
    assert order.accept(chunk(1, epoch=2)) == chunk(1, epoch=2)
    assert order.accept(end(1, epoch=1)) is None
    assert not order.ended
    order.accept(end(2, epoch=2))
    assert order.ended


def test_a_missing_record_is_an_error() -> None:
    order = EdgeOrder(EDGE)
    order.accept(chunk(0))
    with pytest.raises(StageFailed, match="record 2 came where 1 was due") as caught:
        order.accept(chunk(2))
    assert caught.value.code == "edge_incomplete"


@pytest.mark.parametrize("count", [0, 2])
def test_an_end_with_another_count_is_an_error(count: int) -> None:
    order = EdgeOrder(EDGE)
    order.accept(chunk(0))
    with pytest.raises(StageFailed, match=f"ended after {count} records, of which 1 arrived"):
        order.accept(end(count))
    assert not order.ended


def test_an_error_record_is_raised_as_what_it_was() -> None:
    failure = Failure(code="invalid_value", message="cannot be spoken", status=400, param="input", stage="talker")
    with pytest.raises(InvalidRequest, match="cannot be spoken") as caught:
        EdgeOrder(EDGE).accept(Failed(request_id="r", edge=EDGE, epoch=1, failure=failure))
    assert (caught.value.param, caught.value.stage, caught.value.status) == ("input", "talker", 400)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_whatever_holders_repeat_the_reader_sees_each_record_once(lengths: list[int], data: st.DataObject) -> None:
    """Each holder repeats some of the tail of what its predecessors wrote, then goes on."""
    stream: list[Record] = []
    written = 0
    for epoch, length in enumerate(lengths, start=1):
        stream.append(opened(epoch, written))
        again = data.draw(st.integers(0, written))
        stream.extend(chunk(seq, epoch) for seq in range(written - again, written + length))
        written += length
    stream.append(end(written, len(lengths)))
    order = EdgeOrder(EDGE)
    seen = [record.seq for record in map(order.accept, stream) if record is not None]  # type: ignore[arg-type]
    assert seen == list(range(written))
    assert order.ended


def test_after_a_redo_only_what_is_written_again_counts() -> None:
    order = EdgeOrder(EDGE)
    for record in (opened(1), chunk(0), chunk(1)):
        order.accept(record)
    order.redo(1)
    for old in (chunk(2), chunk(3), end(4)):
        assert order.accept(old) is None
    assert not order.ended
    order.accept(opened(2, seq=1))
    assert order.accept(chunk(1, epoch=2)) == chunk(1, epoch=2)
    assert order.accept(chunk(2, epoch=2)) == chunk(2, epoch=2)
    order.accept(end(3, epoch=2))
    assert order.ended
