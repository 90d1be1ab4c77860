"""What a log says about its edge so far: pure reading of records, newest holder's word last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from omnistage.contracts import End, Failed, Opened, ReadRecord, Record, Released


@dataclass
class EdgeHistory:
    """The state of an edge after some records of its log.

    Attributes:
        epoch: the highest that was seen; 0 if the log is empty.
        data: data records that count, by position.
        finished: whether the newest holder ended the edge.
        failed: whether it ended it with an error.
        crashes: holders that neither ended the edge nor released it, the newest one included.
    """

    epoch: int = 0
    data: list[Record] = field(default_factory=list)
    finished: bool = False
    failed: bool = False
    crashes: int = 0

    @classmethod
    def of(cls, records: Iterable[ReadRecord]) -> EdgeHistory:
        """Read records in the order of the log."""
        history = cls()
        for record in records:
            history._add(record)
        return history

    def rewind(self, seq: int) -> None:
        """Forget the data from a position on; the edge is open again."""
        del self.data[seq:]
        self.finished = self.failed = False

    def _add(self, record: ReadRecord) -> None:
        if record.epoch < self.epoch:
            # The log refuses a fenced holder; only a broken one could have written this.
            return
        self.epoch = record.epoch
        if isinstance(record, Opened):
            self.rewind(record.seq)
            self.crashes += 1
        elif isinstance(record, Released):
            self.crashes -= 1
        elif isinstance(record, End | Failed):
            self.crashes -= 0 if self.finished else 1
            self.finished = True
            self.failed = isinstance(record, Failed)
        elif record.seq == len(self.data):
            self.data.append(record)
