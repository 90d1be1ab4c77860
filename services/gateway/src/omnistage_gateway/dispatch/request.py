"""A request under way: its logs are read side by side into one stream of events, watched by two clocks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from omnistage.contracts import AudioDone, TextDelta, TextDone
from omnistage.errors import (
    BusError,
    Cancelled,
    DeadlineExceeded,
    InputStarved,
    OmnistageError,
    StageFailed,
    TensorError,
)
from omnistage.observability import describe_error, get_logger
from omnistage.runtime.tasks import TaskBag, together
from omnistage_gateway.dispatch.handover import Handover
from omnistage_gateway.dispatch.hooks import Kind
from omnistage_gateway.dispatch.interface import AudioPiece, Event, VoiceFeatures
from omnistage_gateway.dispatch.out_edge import OutEdge

_log = get_logger(__name__)


@dataclass(frozen=True)
class Calls:
    """What a request asks of its dispatcher.

    Attributes:
        publish: put the entry node's work item into its queue.
        is_over: whether a tombstone says that the request is over.
        first: the first event of a kind came.
        republished: the work item was published again.
    """

    publish: Callable[[], Awaitable[None]]
    is_over: Callable[[], Awaitable[bool]]
    first: Callable[[Kind], None]
    republished: Callable[[], None]


class Request:
    """Implements `interface.Running`.

    Silence is measured over all edges together: while any of them moves, the pipeline lives, and an edge may well wait
    for another one (speech for the end of a long clause). Time that the router takes to read does not count.

    Args:
        deadline: clock reading after which nobody waits for it.
        idle_s: how long all edges may be silent; then the work item is published again, once, and after as much
            silence again the request fails.
        buffered: events that are read ahead of the router at most.
    """

    def __init__(
        self,
        request_id: str,
        edges: list[OutEdge],
        calls: Calls,
        *,
        deadline: float,
        idle_s: float,
        buffered: int,
        clock: Callable[[], float],
    ) -> None:
        self._request_id = request_id
        self._edges = edges
        self._calls = calls
        self._deadline = deadline
        self._idle_s = idle_s
        self._clock = clock
        self._events: Handover[Event] = Handover(buffered)
        self._tasks = TaskBag("request")
        self._open = len(edges)
        self._blocked = 0
        self._moved = clock()
        self._seen: set[Kind] = set()
        self._error: OmnistageError | None = None

    @property
    def request_id(self) -> str:
        return self._request_id

    @property
    def ended(self) -> bool:
        """Whether every edge has come to its end, and no failure came before."""
        return self._open == 0 and self._error is None

    @property
    def buffered(self) -> int:
        """Events that wait for the router."""
        return len(self._events)

    @property
    def outcome(self) -> str:
        """ "ok", the error's code, or "cancelled" if it was left before its end."""
        if self.ended:
            return "ok"
        return self._error.code if self._error is not None else Cancelled.code

    async def start(self) -> None:
        """Listen to every edge, then publish the work.

        Raises:
            BusError: the broker is away or full.
            TensorError: there is no room for what the request brings.
        """
        await together(*(edge.open() for edge in self._edges))
        if self._events.closed:
            return
        await self._calls.publish()
        self._moved = self._clock()
        for edge in self._edges:
            self._tasks.spawn(self._read(edge), edge.edge.name)
        self._tasks.spawn(self._watch(), "watch")

    async def events(self) -> AsyncIterator[Event]:
        """See `interface.Running.events`."""
        while (event := await self._events.get()) is not None:
            yield event

    def fail(self, error: OmnistageError) -> None:
        """End the stream of events with an error, at once. Without effect on one that has ended."""
        self._close(error, at_once=True)

    async def close(self) -> None:
        """Read no more. Idempotent."""
        self._events.close(self._error or Cancelled("the request was left"), at_once=True)
        await self._tasks.close()
        for edge in self._edges:
            try:
                await edge.close()
            except BusError as error:
                _log.warning("cannot_close_log", request_id=self._request_id, code=error.code)

    def _close(self, error: OmnistageError, *, at_once: bool = False) -> None:
        if not self._events.closed:
            self._error = error
            self._events.close(error, at_once=at_once)

    async def _read(self, edge: OutEdge) -> None:
        try:
            async with aclosing(edge.events()) as events:
                async for event in events:
                    self._moved = self._clock()
                    if event is not None:
                        await self._pass_on(event)
        except OmnistageError as error:
            self._close(error)
        except Exception as error:  # noqa: BLE001 - a bug here must end this request, not leave it hanging
            _log.error("reading_failed", request_id=self._request_id, **describe_error(error))
            self._close(StageFailed("the gateway could not read the answer", code="internal_error", stage="gateway"))
        else:
            self._open -= 1
            if self._open == 0:
                self._events.close()

    async def _pass_on(self, event: Event) -> None:
        if (kind := _kind(event)) not in self._seen and kind is not None:
            self._seen.add(kind)
            self._calls.first(kind)
        self._blocked += 1
        try:
            await self._events.put(event)
        finally:
            self._blocked -= 1
            self._moved = self._clock()

    async def _watch(self) -> None:
        """End the request when its deadline passes or nothing comes any more."""
        republished = False
        while not self._events.closed:
            now = self._clock()
            silent = self._moved + self._idle_s if not self._blocked else now + self._idle_s
            if now >= self._deadline:
                self.fail(DeadlineExceeded("the request was not done before its deadline"))
            elif now < silent:
                await asyncio.sleep(min(silent, self._deadline) - now)
            elif republished:
                self._close(InputStarved(f"no stage said anything for {2 * self._idle_s:g} s"))
            else:
                republished = True
                await self._revive()
                self._moved = self._clock()

    async def _revive(self) -> None:
        """Publish the work item again; if it is still there, the queue keeps the first."""
        try:
            if await self._calls.is_over():
                self._close(Cancelled("the request was cancelled"))
                return
            await self._calls.publish()
            self._calls.republished()
            _log.warning("work_republished", request_id=self._request_id)
        except (BusError, TensorError) as error:
            _log.warning("cannot_republish", request_id=self._request_id, code=error.code)


def _kind(event: Event) -> Kind | None:
    match event:
        case TextDelta():
            return "text"
        case AudioPiece():
            return "audio"
        case TextDone() | AudioDone() | VoiceFeatures():
            return None
