"""How a request leaves the system: tombstone, word to the stages, logs purged, blocks given back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from omnistage.contracts import Cancel, Forget, encode
from omnistage.errors import OmnistageError
from omnistage.observability import get_logger
from omnistage.transport import Bus, KeyValue
from omnistage_gateway.dispatch.out_edge import Plane

_log = get_logger(__name__)

DONE, CANCELLED = b"done", b"cancelled"
"""Values of tombstones."""

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True)
class Ending:
    """Removes what a request left. Every step may be repeated.

    Attributes:
        limit_s: how long to keep trying while the broker is away.
        late_s: a stage that looked for the tombstone just before it was written may still append a record or publish
            the next stage's work; this much later everything is purged again.
    """

    bus: Bus
    plane: Plane
    tombstones: KeyValue
    limit_s: float
    late_s: float

    async def clear(self, request_id: str, *, cancelled: bool) -> bool:
        """Take a request out of the system; False if that did not succeed in time."""
        pause_s = _FIRST_PAUSE_S
        code = "timeout"
        try:
            async with asyncio.timeout(self.limit_s):
                while (failure := await self._round(request_id, cancelled)) is not None:
                    code = failure.code
                    await asyncio.sleep(pause_s)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                return True
        except TimeoutError:
            _log.error("request_not_cleared", request_id=request_id, code=code)
            return False

    async def clear_late(self, request_id: str, closing: asyncio.Event) -> None:
        """Purge once more, after a while, or at once when the gateway closes."""
        try:
            async with asyncio.timeout(self.late_s):
                await closing.wait()
        except TimeoutError:
            pass
        try:
            async with asyncio.timeout(self.limit_s):
                await self.bus.purge_request(request_id)
        except (OmnistageError, TimeoutError) as error:
            # The first purge succeeded; what came later is left to the streams' own age limits.
            _log.warning("late_purge_failed", request_id=request_id, error=type(error).__name__)

    async def _round(self, request_id: str, cancelled: bool) -> OmnistageError | None:
        """All steps, each tried whatever became of the others; the first failure, if any.

        The tombstone comes first: who claims the work after the word was sent still finds it.
        """
        word = Cancel(request_id=request_id) if cancelled else Forget(request_id=request_id)
        steps: tuple[Callable[[], Awaitable[object]], ...] = (
            lambda: self.tombstones.put(request_id, CANCELLED if cancelled else DONE),
            lambda: self.bus.send(self.bus.subjects.ctl_request(request_id), encode(word)),
            lambda: self.bus.purge_request(request_id),
            lambda: self.plane.forget(request_id),
        )
        failure: OmnistageError | None = None
        for step in steps:
            try:
                await step()
            except OmnistageError as error:
                failure = failure or error
        return failure
