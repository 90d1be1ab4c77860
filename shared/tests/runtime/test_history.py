"""What a log says about its edge."""

from __future__ import annotations

import pytest

from omnistage.contracts import AnyRecord, End, Failed, Failure, Opened, Released, TextChunk
from omnistage.runtime.history import EdgeHistory

E = "thinker-talker"


def opened(epoch: int, seq: int = 0) -> Opened:
    return Opened(request_id="r", edge=E, epoch=epoch, seq=seq, instance=f"i{epoch}")


def chunk(seq: int, epoch: int) -> TextChunk:
    return TextChunk(request_id="r", edge=E, epoch=epoch, seq=seq, text=f"{seq}@{epoch}")


def end(count: int, epoch: int) -> End:
    return End(request_id="r", edge=E, epoch=epoch, seq=count, count=count)


def released(epoch: int) -> Released:
    return Released(request_id="r", edge=E, epoch=epoch)


def failed(epoch: int) -> Failed:
    return Failed(request_id="r", edge=E, epoch=epoch, failure=Failure(code="c", message="m"))


@pytest.mark.parametrize(
    ("records", "epoch", "texts", "finished", "crashes"),
    [
        ([], 0, [], False, 0),
        ([opened(1)], 1, [], False, 1),
        ([opened(1), chunk(0, 1), end(1, 1)], 1, ["0@1"], True, 0),
        ([opened(1), chunk(0, 1), failed(1)], 1, ["0@1"], True, 0),
        ([opened(1), chunk(0, 1), released(1), opened(2, 1), chunk(1, 2)], 2, ["0@1", "1@2"], False, 1),
        ([opened(1), opened(2), opened(3), chunk(0, 3), end(1, 3)], 3, ["0@3"], True, 0),
        # Ended, then written again from position 1 on.
        (
            [opened(1), chunk(0, 1), chunk(1, 1), end(2, 1), opened(2, 1), chunk(1, 2), end(2, 2)],
            2,
            ["0@1", "1@2"],
            True,
            0,
        ),
        ([opened(1), chunk(0, 1), chunk(1, 1), end(2, 1), opened(2, 1)], 2, ["0@1"], False, 1),
        # A record of a holder that was fenced does not count.
        ([opened(1), opened(2), chunk(0, 1), chunk(0, 2)], 2, ["0@2"], False, 1),
        # Who got further than all before excuses them; the next two did not.
        ([opened(1), opened(2), chunk(0, 2)], 2, ["0@2"], False, 1),
        ([opened(1), opened(2), chunk(0, 2), opened(3, 1), opened(4, 1)], 4, ["0@2"], False, 3),
        # Writing again what was written before is no progress.
        ([opened(1), chunk(0, 1), opened(2), chunk(0, 2), opened(3)], 3, [], False, 3),
        # Progress does not excuse a request for ever: of five silent holders three count.
        (
            [record for n in range(5) for record in (opened(n + 1, n), chunk(n, n + 1))],
            5,
            [f"{n}@{n + 1}" for n in range(5)],
            False,
            3,
        ),
        # One that never opened the edge may say that it leaves it; one that ended it may say so afterwards.
        ([opened(1), released(2)], 2, [], False, 1),
        ([opened(1), chunk(0, 1), end(1, 1), released(1)], 1, ["0@1"], True, 0),
        # Holders that gave up in order never count.
        (
            [record for n in range(5) for record in (opened(n + 1), released(n + 1))],
            5,
            [],
            False,
            0,
        ),
    ],
)
def test_the_newest_holder_has_the_last_word(
    records: list[AnyRecord], epoch: int, texts: list[str], finished: bool, crashes: int
) -> None:
    history = EdgeHistory.of(records)
    assert history.epoch == epoch
    assert [record.text for record in history.data if isinstance(record, TextChunk)] == texts
    assert history.finished == finished
    assert history.crashes == crashes


def test_rewinding_opens_the_edge_again() -> None:
    history = EdgeHistory.of([opened(1), chunk(0, 1), chunk(1, 1), end(2, 1)])
    history.rewind(1)
    assert (len(history.data), history.finished) == (1, False)
