"""Waiting for a server that is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from omnistage.errors import BusUnavailable, OmnistageError

T = TypeVar("T")

_PAUSE_S = 0.1


async def patiently(call: Callable[[], Awaitable[T]], away: type[OmnistageError] = BusUnavailable) -> T:
    """The result of a repeatable call, however long the broker (or whoever's absence `away` tells) is away.

    Whoever calls bounds the wait: a request by its deadline, a process by its stop.
    """
    while True:
        try:
            return await call()
        except away:
            await asyncio.sleep(_PAUSE_S)
