"""What a log says about its edge so far: pure reading of records, newest holder's word last."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from omnistage.contracts import End, Failed, Opened, ReadRecord, Record, Released

EXCUSED = 2
"""So many silent holders are forgiven to a request for the progress that they made."""


@dataclass
class EdgeHistory:
    """The state of an edge after some records of its log.

    Attributes:
        epoch: the highest that was seen; 0 if the log is empty.
        data: data records that count, by position.
        finished: whether the newest holder ended the edge.
        failed: whether it ended it with an error.
        held: whether the newest holder has opened the edge and said nothing of leaving it.
        silent: holders that neither ended the edge nor released it, the newest one included.
        stuck: those of them that wrote nothing which no holder before had written, and the last one that did.
    """

    epoch: int = 0
    data: list[Record] = field(default_factory=list)
    finished: bool = False
    failed: bool = False
    held: bool = False
    silent: int = 0
    stuck: int = 0
    furthest: int = 0

    @property
    def crashes(self) -> int:
        """How often the request is suspected to have ended its holder.

        A request that kills whoever runs it does so at the same place again; instances that die of something else
        have mostly got further in between. Such progress excuses them, but not for ever.
        """
        return max(self.stuck, self.silent - EXCUSED)

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
        self.held = self.held and record.epoch == self.epoch
        self.epoch = record.epoch
        if isinstance(record, Opened):
            self.rewind(record.seq)
            self.held = True
            self.silent += 1
            self.stuck += 1
        elif isinstance(record, Released):
            self._left()
        elif isinstance(record, End | Failed):
            self._left()
            self.finished = True
            self.failed = isinstance(record, Failed)
        elif record.seq == len(self.data):
            self.data.append(record)
            if len(self.data) > self.furthest:
                self.furthest = len(self.data)
                self.stuck = min(self.stuck, 1)

    def _left(self) -> None:
        """The newest holder said that it is done; one that never opened the log may say so too."""
        if self.held:
            self.held = False
            self.silent -= 1
            self.stuck -= 1
