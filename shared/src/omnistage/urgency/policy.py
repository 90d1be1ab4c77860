"""When a client runs dry, as far as one stage can tell from what it has made itself. Pure: no clock, no I/O.

Nobody starves: whoever gets a turn is due at that moment at the earliest. So a request that waits since before is
passed by each other request once at most after its own `due` has come, however many there are and whatever they make.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Reading = Literal["stream", "whole", "batch"]
"""How a client takes its answer: as it is made, in one piece at its end, or whenever there is time for it."""

SPOKEN_CHARS_PER_S = 15.0
"""Text that is spoken in a second: 150 words of English a minute, 6 characters each with the space."""

READ_CHARS_PER_S = 24.0
"""Text that is read in a second: 238 words of English a minute (Brysbaert 2019, "How many words do we read per
minute?"), 6 characters each with the space."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a client that has nothing to run dry of is made to wait for those that have.

    Attributes:
        start_s: for the first of a stream; later ones come after streams that have less than this in hand.
        whole_s: between two turns of an answer that leaves in one piece.
        batch_s: the same for work that nobody waits for.
    """

    start_s: float = 0.3
    whole_s: float = 4.0
    batch_s: float = 30.0

    def __post_init__(self) -> None:
        if min(self.start_s, self.whole_s, self.batch_s) < 0:
            raise ValueError("patience cannot be negative")

    def of(self, reading: Reading) -> float:
        """Seconds that a client waits at first."""
        match reading:
            case "stream":
                return self.start_s
            case "whole":
                return self.whole_s
            case "batch":
                return self.batch_s


PATIENCE = Patience()


class Urgency:
    """One request's place in the order: the smallest `due` first.

    A client of a stream is taken to play at the rate of time from the first that leaves this stage, and to wait where
    it ran dry. It has never more in hand than that, so the estimate errs towards serving it too early.

    All times are readings of one monotonic clock, in seconds.

    Args:
        reading: how the client takes the answer.
        now: when the stage took the request up.
        begun: whether the client has some of the answer already, from an earlier holder of the request: how much is
            left of it nobody knows, so it counts as dry.
        patience: see there.

    Attributes:
        due: when the client runs dry; for those that cannot, when their patience ends.
    """

    __slots__ = ("_patience", "_playing", "_reading", "due")

    def __init__(
        self, reading: Reading = "stream", *, now: float, begun: bool = False, patience: Patience = PATIENCE
    ) -> None:
        self._reading = reading
        self._patience = patience
        self._playing = begun
        self.due = now if begun and reading == "stream" else now + patience.of(reading)

    def turn(self, now: float) -> None:
        """The request is served: it stands behind all that have been due for longer."""
        self.due = max(self.due, now)

    def made(self, seconds: float, now: float) -> None:
        """So much of the answer, in seconds of its playing or reading, leaves for the client."""
        if self._reading != "stream":
            self.due = now + self._patience.of(self._reading)
        elif seconds > 0:
            self.due = (max(self.due, now) if self._playing else now) + seconds
            self._playing = True
