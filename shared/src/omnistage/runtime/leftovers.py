"""Blocks of requests that ended while this instance could not hear of it."""

from __future__ import annotations

from collections.abc import Container

from omnistage.tensors.plane import TensorPlane
from omnistage.transport import KeyValue


async def forget_ended(plane: TensorPlane, tombstones: KeyValue, held: Container[str]) -> int:
    """Forget what this process published for requests that are over; returns how many requests that were.

    An instance that was cut off is fenced, and misses the word that ends the request. It cannot forget the request's
    blocks when it is fenced, since its successor may still read them; the tombstone tells when nobody does.

    Args:
        held: requests that are still this instance's: the word comes to them.

    Raises:
        BusError, TensorError: a server is away; the rest is left to the next time.
    """
    ended = 0
    for request_id in plane.published():
        if request_id not in held and await tombstones.get(request_id) is not None:
            await plane.forget(request_id)
            ended += 1
    return ended
