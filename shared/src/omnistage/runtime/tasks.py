"""The one place that creates tasks. A task is always held by somebody, and its failure is always seen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from omnistage.observability import get_logger

_log = get_logger(__name__)


async def together(*coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run coroutines side by side; the first failure cancels the others and is raised as itself, not as a group."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in coroutines]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


class TaskBag:
    """Tasks whose number changes while their owner lives (requests, heartbeats); closing it ends them all.

    Unlike a TaskGroup, one task's failure does not cancel the others: it goes to `on_error`.
    """

    def __init__(self, name: str, on_error: Callable[[BaseException], None] | None = None) -> None:
        self._name = name
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_error = on_error
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    @property
    def closed(self) -> bool:
        """Whether it takes no more tasks."""
        return self._closed

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Start a task and hold it until it is done."""
        if self._closed:
            coroutine.close()
            raise RuntimeError(f"task bag {self._name!r} is closed")
        task = asyncio.get_running_loop().create_task(coroutine, name=f"{self._name}:{name}")
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        if self._on_error is not None:
            self._on_error(error)
        else:
            _log.error("task failed", task=task.get_name(), exc_info=error)

    def named(self, *names: str) -> list[asyncio.Task[Any]]:
        """The tasks that were spawned under these names and still run."""
        wanted = {f"{self._name}:{name}" for name in names}
        return [task for task in self._tasks if task.get_name() in wanted]

    async def wait_for(self, *names: str, timeout_s: float | None = None) -> bool:
        """Wait until the tasks of these names are done; False if some still run after the timeout."""
        tasks = self.named(*names)
        if not tasks:
            return True
        _, running = await asyncio.wait(tasks, timeout=timeout_s)
        return not running

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all tasks are done; False if some still run after the timeout."""
        if not self._tasks:
            return True
        _, running = await asyncio.wait(set(self._tasks), timeout=timeout_s)
        return not running

    async def close(self) -> None:
        """Cancel what still runs, wait for it, take no more. Idempotent."""
        self._closed = True
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
