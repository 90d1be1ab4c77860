"""Kills instances that hold running work with output already sent, while streams are heard; measures what follows."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
from tests.support.presences import Presences
from tests.support.progress import LOGS, log_subject, progress, take_over
from tests.support.streams import Ask, Played, play

from omnistage.contracts import Presence
from omnistage.transport import Bus

STAGES = tuple(LOGS)
RECOVERY_LIMIT_S = 20.0
HANG_EVERY = 4
"""Every so many-th instance of a stage hangs before it is killed."""
HITS_LIMIT = 2
"""A third crash at one stage would, rightly, be taken for the request's own fault."""


@dataclass(frozen=True)
class Hit:
    """A request in the hands of an instance when it was killed.

    Attributes:
        taken_over_s, went_on_s: seconds from the kill to another holder's claim and to its first record; None if
            that did not happen.
    """

    request_id: str
    chunks: int
    taken_over_s: float | None
    went_on_s: float | None


@dataclass(frozen=True)
class Kill:
    """One kill.

    Attributes:
        how: "kill", or "hang": stopped until others had taken over, and killed then.
        at: when it was killed or stopped, in monotonic seconds.
    """

    how: str
    stage: str
    instance: str
    at: float
    hits: tuple[Hit, ...]


@dataclass
class Chaos:
    """Streams that are played again and again while their stages are killed.

    Attributes:
        references: what each ask gives undisturbed.
        finished: every stream that was played under kills.
    """

    bus: Bus
    client: httpx.AsyncClient
    presences: Presences
    chance: random.Random
    references: dict[Ask, tuple[str, bytes]] = field(default_factory=dict)
    finished: list[Played] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)

    async def learn(self, asks: Sequence[Ask]) -> None:
        """Play every ask once, undisturbed."""
        heard = [Played(ask) for ask in asks]
        async with asyncio.TaskGroup() as group:
            for played in heard:
                group.create_task(play(self.client, played.ask, played))
        assert [played.failure for played in heard if not played.complete] == []
        self.references = {played.ask: played.content for played in heard}

    async def run(self, kills_per_stage: int, at_once: int) -> None:
        """Kill until every stage was hit so often, then let the streams end."""
        stop = asyncio.Event()
        turns = itertools.cycle(self.references)
        async with asyncio.TaskGroup() as group:
            for number in range(at_once):
                group.create_task(self._listen(turns, stop, delay_s=0.4 * number))
            try:
                await self._kill_all(kills_per_stage)
            finally:
                stop.set()

    async def _listen(self, turns: itertools.cycle[Ask], stop: asyncio.Event, *, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        while not stop.is_set():
            played = Played(next(turns))
            self.finished.append(played)
            await play(self.client, played.ask, played)

    async def _kill_all(self, per_stage: int) -> None:
        while (counts := Counter(kill.stage for kill in self.kills)).total() < per_stage * len(STAGES):
            stages = [stage for stage in STAGES if counts[stage] < per_stage]
            victim = await self._victim(stages)
            if victim is not None:
                hang = counts[victim[0].service] % HANG_EVERY == HANG_EVERY - 1
                self.kills.append(kill := await self.kill(*victim, hang=hang))
                times = ", ".join(f"{hit.taken_over_s} / {hit.went_on_s}" for hit in kill.hits)
                print(f"{len(self.kills)}: {kill.how} {kill.instance}, taken over / gone on after {times} s")
            await asyncio.sleep(self.chance.uniform(0.05, 0.6))

    async def _victim(self, stages: list[str]) -> tuple[Presence, dict[str, str]] | None:
        """A random instance with output sent and an end still to come, of a stage that has another instance."""
        candidates = [
            presence
            for stage in stages
            if len(ready := self.presences.ready(stage)) >= 2
            for presence in ready
            if any(engine.running for engine in presence.engines)
        ]
        if not candidates:
            return None
        presence = self.chance.choice(candidates)
        logs = {
            request_id: log_subject(self.bus, presence.service, engine.engine, request_id)
            for engine in presence.engines
            for request_id in engine.running
        }
        known = {played.request_id for played in self.finished}
        running = {
            request_id: subject
            for request_id, subject in logs.items()
            if request_id in known and await self._under_way(subject, presence.instance)
        }
        spared = any(self._hits(presence.service, request_id) >= HITS_LIMIT for request_id in logs)
        return (presence, running) if running and not spared else None

    def _hits(self, stage: str, request_id: str) -> int:
        return sum(hit.request_id == request_id for kill in self.kills if kill.stage == stage for hit in kill.hits)

    async def _under_way(self, subject: str, instance: str) -> bool:
        found = await progress(self.bus, subject)
        return found.holder == instance and found.chunks > 0 and not found.over

    async def kill(self, presence: Presence, logs: dict[str, str], *, hang: bool = False) -> Kill:
        """Kill or stop it, and wait until every request that it held has gone on elsewhere."""
        os.kill(presence.pid, signal.SIGSTOP if hang else signal.SIGKILL)
        at = time.monotonic()
        self.presences.forget(presence.instance)
        async with asyncio.TaskGroup() as group:
            waits = [
                group.create_task(self._recovered(subject, request_id, presence.instance, at))
                for request_id, subject in logs.items()
            ]
        if hang:
            os.kill(presence.pid, signal.SIGKILL)
        hits = tuple(hit for wait in waits if (hit := wait.result()))
        return Kill("hang" if hang else "kill", presence.service, presence.instance, at, hits)

    async def _recovered(self, subject: str, request_id: str, instance: str, at: float) -> Hit | None:
        """None if the log was over before the kill came."""
        before = await progress(self.bus, subject)
        if before.over or not before.chunks:
            return None
        after = before.last if before.holder == instance else 0
        taken = await take_over(self.bus, subject, after, instance, RECOVERY_LIMIT_S)
        if taken is None:
            return Hit(request_id, before.chunks, None, None)
        return Hit(request_id, before.chunks, round(taken.opened - at, 3), round(taken.went_on - at, 3))

    def wrong(self) -> list[str]:
        """What did not go as it does undisturbed, in words."""
        found = [
            f"{played.request_id} ({played.ask.kind}): {played.failure}" for played in self.finished if played.failure
        ]
        for played in self.finished:
            text, audio = self.references[played.ask]
            if played.complete and played.content != (text, audio):
                pairs = zip(played.audio, audio, strict=False)
                same = next((at for at, (ours, theirs) in enumerate(pairs) if ours != theirs), len(audio))
                found.append(
                    f"{played.request_id} ({played.ask.kind}): other content; text equal: {played.text == text}, "
                    f"{len(played.audio)} bytes of sound for {len(audio)}, equal up to {same}"
                )
        found += [
            f"{hit.request_id}: nobody went on within {RECOVERY_LIMIT_S} s of the kill of {kill.instance}"
            for kill in self.kills
            for hit in kill.hits
            if hit.went_on_s is None
        ]
        return found
