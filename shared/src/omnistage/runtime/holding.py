"""What an instance holds: claims that run, and claims that wait for their request to be over."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from omnistage.contracts import Work
from omnistage.runtime.engines import HostedEngine
from omnistage.runtime.meta import Meta
from omnistage.transport import Claim


@dataclass(eq=False)
class Held:
    """One claim.

    Attributes:
        edges_out: names of the edges that its node writes.
        task: the run; None while the claim only lingers.
        apart: it waits until nothing else runs on this instance, and runs nothing itself.
        over: the request is over; nothing more is to be written for it.
        given_up: the claim is another instance's to take, since the engine is stuck.
        redo: edges that are to be written again -> from which record on.
        note: writing the claim into the claim book.
    """

    claim: Claim
    work: Work
    meta: Meta
    hosted: HostedEngine
    edges_out: frozenset[str]
    task: asyncio.Task[None] | None = None
    apart: bool = False
    over: bool = False
    given_up: bool = False
    redo: dict[str, int] = field(default_factory=dict)
    note: asyncio.Task[None] | None = None


class Holdings:
    """All claims of an instance. A request may be held twice: at two nodes, or anew after a redelivery."""

    def __init__(self) -> None:
        self._held: dict[int, Held] = {}

    def __iter__(self) -> Iterator[Held]:
        return iter(list(self._held.values()))

    @property
    def running(self) -> tuple[str, ...]:
        """Requests whose handlers run."""
        return tuple(held.work.request_id for held in self._held.values() if held.task is not None)

    def add(self, held: Held) -> None:
        """Keep a claim. One for the same node that only lingers is replaced: its item was delivered again."""
        for other in self.of_request(held.work.request_id):
            if other is not held and other.task is None and other.work.node == held.work.node:
                self.remove(other)
        self._held[id(held)] = held

    def remove(self, held: Held) -> None:
        """Keep it no more. Idempotent."""
        self._held.pop(id(held), None)

    def at_work(self, request_id: str, node: str) -> Held | None:
        """The claim for a node whose handler runs and is to go on, if there is one."""
        for held in self.of_request(request_id):
            if held.work.node == node and held.task is not None and not (held.over or held.given_up):
                return held
        return None

    def of_request(self, request_id: str) -> list[Held]:
        return [held for held in self._held.values() if held.work.request_id == request_id]
