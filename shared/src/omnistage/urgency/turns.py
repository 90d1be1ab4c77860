"""Threads whose next call is that of the most urgent request."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from omnistage.urgency.policy import Urgency

T = TypeVar("T")


@dataclass(eq=False, slots=True)
class _Turn:
    urgency: Urgency
    number: int
    call: Callable[[], Any]
    future: Future[Any]


class Turns:
    """Runs calls of many requests in a few threads.

    Which call is next is decided when a thread is free, by what is known then. A request waits for one call at a time.

    Args:
        threads: how many calls run at once.
        name: of the threads, for people.
        by_deadline: the smallest `Urgency.due` first, ties by arrival; else by arrival alone.
        clock: monotonic seconds, the one that the urgencies are told.
    """

    def __init__(
        self, threads: int, *, name: str, by_deadline: bool = True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._by_deadline = by_deadline
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: list[_Turn] = []
        self._arrivals = 0

    @property
    def waiting(self) -> int:
        """Calls that wait for a thread."""
        return len(self._waiting)

    async def run(self, urgency: Urgency, call: Callable[[], T]) -> T:
        """Have a call run in its turn. Cancelled while it waits, it never runs; while it runs, it is let run out.

        Raises:
            RuntimeError: closed.
            Whatever the call raises.
        """
        future: Future[T] = Future()
        with self._lock:
            # One task of the pool for each call that waits; which of them it runs, it decides when it begins.
            self._pool.submit(self._run_first)
            self._waiting.append(_Turn(urgency, self._arrivals, call, future))
            self._arrivals += 1
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        """Cancel what waits, wait for what runs, end the threads. Idempotent."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for turn in waiting:
            turn.future.cancel()
        await asyncio.to_thread(self._pool.shutdown)

    def _run_first(self) -> None:
        turn = self._first()
        if turn is None:
            return
        try:
            result = turn.call()
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits for it, who would else wait for ever
            turn.future.set_exception(error)
        else:
            turn.future.set_result(result)

    def _first(self) -> _Turn | None:
        """The most urgent call that somebody still waits for, marked as running."""
        with self._lock:
            while self._waiting:
                turn = min(self._waiting, key=self._order)
                self._waiting.remove(turn)
                if turn.future.set_running_or_notify_cancel():
                    turn.urgency.turn(self._clock())
                    return turn
        return None

    def _order(self, turn: _Turn) -> tuple[float, int]:
        return (turn.urgency.due if self._by_deadline else 0.0, turn.number)
