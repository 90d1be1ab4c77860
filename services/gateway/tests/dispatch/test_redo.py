"""Samples that were lost on their way are made again: the client hears each once, and none is missing."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from omnistage.contracts import AudioDelta, Redo
from omnistage.errors import BusUnavailable, StageFailed, TensorError

if TYPE_CHECKING:
    from services.gateway.tests.dispatch.conftest import MemoryWorld, Stage

from omnistage_gateway.dispatch.interface import AudioPiece

EDGE = "codec-gateway"
PIECE = 30_000
"""Samples of a piece: more than travels inside a message."""


async def piece(stage: Stage, number: int, *, lost: bool = False, shift: int = 0) -> dict[str, Any]:
    fields = await stage.audio(number * PIECE - shift, (number + 1) * PIECE)
    if lost:
        await stage.world.plane.release(fields["payload"])
    return fields


async def redo(world: MemoryWorld, count: int = 1) -> Redo:
    """The redo number `count` that was asked for."""
    async with asyncio.timeout(5):
        while len(asked := [word for word in world.controls if isinstance(word, Redo)]) < count:
            await asyncio.sleep(0.005)
    return asked[count - 1]


async def samples(world: MemoryWorld) -> list[int]:
    events = await world.collect(world.speak(), "r1")
    return [int(value) for event in events if isinstance(event, AudioPiece) for value in event.samples]


def expected(pieces: int) -> list[int]:
    return [number % 32768 for number in range(pieces * PIECE)]


async def test_what_was_lost_is_asked_for_and_heard(world: MemoryWorld) -> None:
    async def script(stage: Stage, work: Any) -> None:
        log = stage.records(EDGE)
        first = [await piece(stage, 0), await piece(stage, 1, lost=True), await piece(stage, 2)]
        await stage.write(EDGE, log.opened(), *(log.audio(fields, seq) for seq, fields in enumerate(first)), log.end(3))
        word = await redo(world)
        assert (word.request_id, word.edge, word.seq) == ("r1", EDGE, 1)
        again = [await piece(stage, 1), await piece(stage, 2)]
        await stage.write(EDGE, log.opened(2, 1), *(log.audio(f, seq, 2) for seq, f in enumerate(again, 1)))
        await stage.write(EDGE, log.end(3, epoch=2))

    await world.serve("heart", script)
    assert await samples(world) == expected(3)
    assert [entry for entry in world.hooked if entry[0] == "redone"] == [("redone", "voice")]
    await world.dispatcher.settled()
    assert world.left() == []


async def test_a_real_writer_takes_its_edge_over_again(world: MemoryWorld) -> None:
    async def script(stage: Stage, work: Any) -> None:
        writer = await stage.open(EDGE)
        for number in range(3):
            await writer.send(AudioDelta, **await piece(stage, number, lost=number == 1))
        await writer.finish()
        word = await redo(world)
        again = await stage.open(EDGE, redo_from=word.seq)
        for number in range(word.seq, 3):
            await again.send(AudioDelta, **await piece(stage, number))
        await again.finish()

    await world.serve("heart", script)
    assert await samples(world) == expected(3)


async def test_samples_that_were_delivered_are_dropped_by_offset(world: MemoryWorld) -> None:
    async def script(stage: Stage, work: Any) -> None:
        log = stage.records(EDGE)
        await stage.write(EDGE, log.opened(), log.audio(await piece(stage, 0), 0))
        await stage.write(EDGE, log.audio(await piece(stage, 1, lost=True), 1))
        await redo(world)
        longer = await piece(stage, 1, shift=500)
        await stage.write(EDGE, log.opened(2, 1), log.audio(longer, 1, 2), log.end(2, epoch=2))

    await world.serve("heart", script)
    assert await samples(world) == expected(2)


async def test_a_question_that_nobody_heard_is_asked_again(world: MemoryWorld) -> None:
    async def script(stage: Stage, work: Any) -> None:
        log = stage.records(EDGE)
        await stage.write(EDGE, log.opened(), log.audio(await piece(stage, 0, lost=True), 0))
        await redo(world, 3)
        await stage.write(EDGE, log.opened(2), log.audio(await piece(stage, 0), 0, 2), log.end(1, epoch=2))

    await world.serve("heart", script)
    assert await samples(world) == expected(1)


async def test_a_holder_that_went_on_behind_the_gap_is_asked_again(world: MemoryWorld) -> None:
    async def script(stage: Stage, work: Any) -> None:
        log = stage.records(EDGE)
        await stage.write(EDGE, log.opened(), log.audio(await piece(stage, 0, lost=True), 0))
        await redo(world)
        behind = [await piece(stage, number) for number in (1, 2, 3, 4)]
        await stage.write(EDGE, log.opened(2, 1), *(log.audio(f, seq, 2) for seq, f in enumerate(behind, 1)))
        await stage.write(EDGE, log.end(5, epoch=2))
        await redo(world, 2)
        await stage.write(EDGE, log.opened(3), log.audio(await piece(stage, 0), 0, 3))
        await stage.write(EDGE, *(log.audio(f, seq, 3) for seq, f in enumerate(behind, 1)), log.end(5, epoch=3))

    await world.serve("heart", script)
    assert await samples(world) == expected(5)


@pytest.mark.parametrize("answered", [True, False])
async def test_what_is_lost_again_and_again_is_an_error_that_a_retry_may_help(
    world: MemoryWorld, answered: bool
) -> None:
    async def script(stage: Stage, work: Any) -> None:
        log = stage.records(EDGE)
        await stage.write(EDGE, log.opened(), log.audio(await piece(stage, 0, lost=True), 0))
        for epoch in (2, 3, 4) if answered else ():
            await redo(world, epoch - 1)
            await stage.write(EDGE, log.opened(epoch), log.audio(await piece(stage, 0, lost=True), 0, epoch))
        await asyncio.Event().wait()

    await world.serve("heart", script)
    with pytest.raises(StageFailed) as failed:
        await samples(world)
    assert (failed.value.code, failed.value.retryable, failed.value.stage) == ("tensor_gone", True, "codec")
    assert len([word for word in world.controls if isinstance(word, Redo)]) == 3


async def test_a_broker_that_is_away_for_the_question_is_asked_later(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, failures = world.bus.send, [BusUnavailable("away")]

    async def unreliable(subject: str, *args: Any) -> None:
        if failures and ".request." in subject:
            raise failures.pop()
        await send(subject, *args)

    monkeypatch.setattr(world.bus, "send", unreliable)

    async def script(stage: Stage, work: Any) -> None:
        log = stage.records(EDGE)
        await stage.write(EDGE, log.opened(), log.audio(await piece(stage, 0, lost=True), 0))
        await redo(world)
        await stage.write(EDGE, log.opened(2), log.audio(await piece(stage, 0), 0, 2), log.end(1, epoch=2))

    await world.serve("heart", script)
    assert await samples(world) == expected(1)
    assert failures == []


async def test_a_block_that_cannot_be_given_back_harms_nobody(
    world: MemoryWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(payload: Any) -> None:
        raise TensorError("the tensor server is away")

    monkeypatch.setattr(world.dispatcher._plane, "release", refuse)
    await world.serve_all()
    assert len(await samples(world)) == 30_000


async def test_leaving_while_a_redo_is_awaited_leaves_nothing(world: MemoryWorld) -> None:
    async def script(stage: Stage, work: Any) -> None:
        log = stage.records(EDGE)
        await stage.write(EDGE, log.opened(), log.audio(await piece(stage, 0, lost=True), 0))
        await asyncio.Event().wait()

    await world.serve("heart", script)
    before = asyncio.all_tasks()
    async with world.run(world.speak(), "r1"):
        await redo(world)
    await world.dispatcher.settled()
    assert world.left() == []
    assert world.followed() == []
    assert len(asyncio.all_tasks() - before) == 0
