"""Threads that run a model on the items of many requests at once."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Generic, TypeVar

from omnistage.errors import OmnistageError, StageFailed
from omnistage.stall import StallWatch
from omnistage.urgency import Urgency
from omnistage_codec.engine.coalescing import Coalescing

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


@dataclass(eq=False, slots=True)
class _Waiting(Generic[ItemT, ResultT]):
    urgency: Urgency
    since: float
    item: ItemT
    future: Future[ResultT]


class BatchTurns(Generic[ItemT, ResultT]):
    """Collects items for a short while and runs them together, the most urgent first.

    A request waits for one item at a time.

    Args:
        run: the model: items to results or errors, in order; called in a thread.
        name: of the threads, for people.
        coalescing: how long items wait for one another.
        live: how many requests may send items; asked in a thread.
        watch: follows the runs; None where the model does so itself.
        threads: runs at once.
        clock: monotonic seconds, the one that the urgencies are told.
    """

    def __init__(
        self,
        run: Callable[[Sequence[ItemT]], Sequence[ResultT | OmnistageError]],
        *,
        name: str,
        coalescing: Coalescing,
        live: Callable[[], int],
        watch: StallWatch | None = None,
        threads: int = 1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run_model = run
        self._coalescing = coalescing
        self._live = live
        self._watch = watch
        self._clock = clock
        self._changed = threading.Condition()
        self._waiting: list[_Waiting[ItemT, ResultT]] = []
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name}-{index}", daemon=True) for index in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    async def run(self, urgency: Urgency, item: ItemT) -> ResultT:
        """Have an item run. Cancelled while it waits, it never runs; while it runs, it is let run out.

        Raises:
            OmnistageError: as the model says of this item.
            RuntimeError: closed.
        """
        return await asyncio.wrap_future(self.submit(urgency, item))

    def submit(self, urgency: Urgency, item: ItemT) -> Future[ResultT]:
        """As `run`, without waiting. Raises RuntimeError if closed."""
        future: Future[ResultT] = Future()
        with self._changed:
            if self._closed:
                raise RuntimeError("the threads are closed")
            self._waiting.append(_Waiting(urgency, self._clock(), item, future))
            self._changed.notify()
        return future

    async def close(self) -> None:
        """Cancel what waits, wait for what runs, end the threads. Idempotent."""
        with self._changed:
            self._closed = True
            waiting, self._waiting = self._waiting, []
            self._changed.notify_all()
        for entry in waiting:
            entry.future.cancel()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    def _serve(self) -> None:
        while (batch := self._next()) is not None:
            if batch:
                self._settle(batch)

    def _next(self) -> list[_Waiting[ItemT, ResultT]] | None:
        """The next batch, marked as running; None once closed."""
        with self._changed:
            while not self._closed:
                self._waiting = [entry for entry in self._waiting if not entry.future.cancelled()]
                wait_s = self._wait_s()
                if wait_s is not None and wait_s <= 0:
                    return self._take()
                self._changed.wait(wait_s)
        return None

    def _wait_s(self) -> float | None:
        if not self._waiting:
            return None
        waited_s = self._clock() - min(entry.since for entry in self._waiting)
        return self._coalescing.wait_s(waiting=len(self._waiting), live=self._live(), waited_s=waited_s)

    def _take(self) -> list[_Waiting[ItemT, ResultT]]:
        ordered = sorted(self._waiting, key=lambda entry: (entry.urgency.due, entry.since))
        chosen, self._waiting = ordered[: self._coalescing.max_batch], ordered[self._coalescing.max_batch :]
        now = self._clock()
        for entry in chosen:
            entry.urgency.turn(now)
        return [entry for entry in chosen if entry.future.set_running_or_notify_cancel()]

    def _settle(self, batch: list[_Waiting[ItemT, ResultT]]) -> None:
        try:
            with nullcontext() if self._watch is None else self._watch.step():
                results = self._run_model([entry.item for entry in batch])
            if len(results) != len(batch):
                raise StageFailed(f"the model gave {len(results)} results for {len(batch)} items")
        except BaseException as error:  # noqa: BLE001 - handed to those who wait for it, who would else wait for ever
            for entry in batch:
                entry.future.set_exception(error)
            return
        for entry, result in zip(batch, results, strict=True):
            if isinstance(result, OmnistageError):
                entry.future.set_exception(result)
            else:
                entry.future.set_result(result)
