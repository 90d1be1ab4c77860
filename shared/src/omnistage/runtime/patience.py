"""Waiting for a server that is away, and for room on a full one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from omnistage.errors import BusUnavailable, OmnistageError, QueueFull

T = TypeVar("T")

ROOM_S = 5.0
"""A full broker is waited for so long: every request that ends meanwhile makes room."""

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


async def with_room(call: Callable[[], Awaitable[T]]) -> T:
    """The result of a bus call, after a short wait if the broker is full.

    Raises:
        QueueFull: it was full all the time.
    """
    end = asyncio.get_running_loop().time() + ROOM_S
    while True:
        try:
            return await call()
        except QueueFull:
            if asyncio.get_running_loop().time() >= end:
                raise
            await asyncio.sleep(_PAUSE_S)
