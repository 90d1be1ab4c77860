"""While stages are upgraded, a gateway offers what all their instances understand, and reads past what it does not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from omnistage.contracts import UnknownRecord
from omnistage.errors import Unavailable
from omnistage_gateway.dispatch.interface import AudioPiece

if TYPE_CHECKING:
    from services.gateway.tests.dispatch.conftest import MemoryWorld, Stage


def speak_later(world: MemoryWorld) -> Any:
    """A plan whose pipeline the second version brought."""
    plan = world.speak()
    return replace(plan, pipeline=replace(plan.pipeline, contract=2))


async def test_a_request_for_a_later_version_is_refused_while_an_instance_is_older(speech: MemoryWorld) -> None:
    with pytest.raises(Unavailable, match=r"needs contract 1\.2.*'heart' of the talker: .*1\.1") as caught:
        await speech.collect(speak_later(speech), "later")
    assert caught.value.code == "upgrade_in_progress"
    assert caught.value.retry_after_s == 5.0
    assert ("refused", "voice", "upgrade_in_progress") in speech.hooked
    assert speech.claimed == []
    assert len(await speech.collect(speech.speak("ab"), "for-all")) == 2, "everything else is served"


async def test_it_is_offered_once_the_last_instance_is_upgraded(speech: MemoryWorld) -> None:
    await speech.announce(contract=2)
    await speech.announce(contract=2, instance="second")
    assert len(await speech.collect(speak_later(speech), "later")) == 3


async def test_one_older_instance_beside_newer_ones_is_enough_to_refuse(speech: MemoryWorld) -> None:
    await speech.announce(contract=2)
    await speech.announce(contract=1, instance="second")
    with pytest.raises(Unavailable):
        await speech.collect(speak_later(speech))


async def test_work_says_which_version_it_needs(world: MemoryWorld) -> None:
    needed: list[int] = []

    async def script(stage: Stage, work: Any) -> None:
        needed.append(stage.meta.contract)
        log = stage.records("codec-gateway")
        await stage.write("codec-gateway", log.opened(), log.end(0))

    await world.serve("heart", script)
    await world.announce(contract=3)
    await world.collect(world.speak())
    await world.collect(speak_later(world))
    assert needed == [1, 2], "what the request needs, not what anybody speaks"


async def test_records_of_a_later_version_are_counted_and_read_past(world: MemoryWorld) -> None:
    async def script(stage: Stage, work: Any) -> None:
        log = stage.records("codec-gateway")
        unknown = UnknownRecord(request_id=work.request_id, edge="codec-gateway", epoch=1, seq=1, kind="of_later")
        first, second = [await stage.audio(start, start + 5) for start in (0, 5)]
        await stage.write("codec-gateway", log.opened(), log.audio(first, 0), unknown, log.audio(second, 2), log.end(3))

    await world.serve("heart", script)
    events = await world.collect(world.speak())
    assert [event.samples.tolist() for event in events if isinstance(event, AudioPiece)] == [
        [0, 1, 2, 3, 4], [5, 6, 7, 8, 9]
    ]  # fmt: skip
    assert [entry for entry in world.hooked if entry[0] == "skipped"] == [("skipped",)]
