"""Stop strings: they end the answer, wherever token borders fall, and are not part of it."""

from __future__ import annotations

from collections.abc import Sequence


class StopStrings:
    """Holds text back while it could be the beginning of a stop string.

    Args:
        stops: the strings; empty ones are ignored.

    Attributes:
        hit: whether one was found. Nothing is given after that.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""
        self.hit = False

    def add(self, text: str) -> str:
        """The part of the text so far that is certain and was not given yet."""
        if self.hit:
            return ""
        pending = self._held + text
        # Whichever is complete first counts, as if text came by single characters; of two, the one that began earlier.
        found = [(at + len(stop), at) for stop in self._stops if (at := pending.find(stop)) >= 0]
        if found:
            self.hit = True
            self._held = ""
            return pending[: min(found)[1]]
        keep = self._possible_start(pending)
        self._held = pending[keep:]
        return pending[:keep]

    def finish(self) -> str:
        """What was held back and turned out to be no stop string."""
        held, self._held = self._held, ""
        return held

    def _possible_start(self, text: str) -> int:
        """Where the longest tail begins that is the beginning of a stop string; the text's length if none is."""
        longest = max((len(stop) for stop in self._stops), default=1) - 1
        for at in range(max(0, len(text) - longest), len(text)):
            if any(stop.startswith(text[at:]) for stop in self._stops):
                return at
        return len(text)
