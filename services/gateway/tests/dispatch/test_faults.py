"""What goes wrong at a stage or on the way: every fault is an error to the client, and nothing stays behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from omnistage.contracts import Cancel, Failed, Failure, Inline, Opened, TensorRef, TextDelta, encode
from omnistage.errors import (
    Cancelled,
    DeadlineExceeded,
    InputStarved,
    InvalidRequest,
    OmnistageError,
    StageFailed,
)
from omnistage_gateway.dispatch.interface import AudioPiece

if TYPE_CHECKING:
    from services.gateway.tests.dispatch.conftest import MemoryWorld, Stage

EDGE = "codec-gateway"
Writes = Callable[["Stage"], Awaitable[None]]


async def nothing_is_left(world: MemoryWorld) -> None:
    await world.dispatcher.settled()
    assert world.left() == []
    assert world.followed() == []
    assert await world.tombstone("r1") == b"cancelled"
    assert world.told(Cancel) == ["r1"]


async def failing(world: MemoryWorld, writes: Writes) -> tuple[OmnistageError, list[int]]:
    """Run a request whose stage writes this into the codec's log; the error, and the samples that came before it."""

    async def script(stage: Stage, work: Any) -> None:
        await writes(stage)
        await asyncio.sleep(3600)

    await world.serve("heart", script)
    got: list[int] = []
    with pytest.raises(OmnistageError) as failed:  # noqa: PT012 - the samples before the error are looked at too
        async with world.run(world.speak(), "r1") as running:
            async for event in running.events():
                assert isinstance(event, AudioPiece)
                got += event.samples.tolist()
    await nothing_is_left(world)
    return failed.value, got


async def test_a_stages_own_error_keeps_type_status_and_field(world: MemoryWorld) -> None:
    failure = Failure(code="unspeakable", message="nothing to say", status=400, param="input", stage="talker")

    async def writes(stage: Stage) -> None:
        log = stage.records(EDGE)
        await stage.write(EDGE, log.opened(), log.audio(await stage.audio(0, 3), 0))
        await stage.write(EDGE, Failed(request_id="r1", edge=EDGE, epoch=1, seq=1, failure=failure))

    error, got = await failing(world, writes)
    assert isinstance(error, InvalidRequest)
    assert (error.code, error.status, error.param, error.stage) == ("unspeakable", 400, "input", "talker")
    assert got == [0, 1, 2]
    assert ("finished", "voice", "unspeakable") in [entry[:3] for entry in world.hooked]


async def test_records_of_an_older_epoch_and_repeated_ones_are_dropped(world: MemoryWorld) -> None:
    async def script(stage: Stage, work: Any) -> None:
        log = stage.records(EDGE)
        first, second = await stage.audio(0, 3), await stage.audio(3, 6)
        await stage.write(EDGE, log.opened(1), log.audio(first, 0), log.opened(2, seq=1))
        await stage.write(EDGE, log.audio(second, 1, epoch=1), log.end(1, epoch=1), log.audio(first, 0, epoch=2))
        await stage.write(EDGE, log.audio(second, 1, epoch=2), log.end(2, epoch=2))

    await world.serve("heart", script)
    events = await world.collect(world.speak())
    assert [event.samples.tolist() for event in events if isinstance(event, AudioPiece)] == [[0, 1, 2], [3, 4, 5]]


async def test_an_older_holders_error_does_not_end_the_request(world: MemoryWorld) -> None:
    late = Failed(request_id="r1", edge=EDGE, epoch=1, failure=Failure(code="stage_failed", message="late"))

    async def script(stage: Stage, work: Any) -> None:
        log = stage.records(EDGE)
        await stage.write(EDGE, log.opened(1), log.opened(2), late, log.end(0, epoch=2))

    await world.serve("heart", script)
    assert await world.collect(world.speak(), "r1") == []


async def test_a_new_holder_that_cuts_its_chunks_otherwise_repeats_no_sample(world: MemoryWorld) -> None:
    async def script(stage: Stage, work: Any) -> None:
        log = stage.records(EDGE)
        await stage.write(EDGE, log.opened(1), log.audio(await stage.audio(0, 20_000), 0), log.opened(2, seq=1))
        pieces = [(5_000, 15_000), (15_000, 25_000), (25_000, 30_000)]
        for seq, (start, stop) in enumerate(pieces, 1):
            await stage.write(EDGE, log.audio(await stage.audio(start, stop), seq, epoch=2))
        await stage.write(EDGE, log.end(4, epoch=2))

    await world.serve("heart", script)
    events = await world.collect(world.speak())
    lengths = [len(event.samples) for event in events if isinstance(event, AudioPiece)]
    assert lengths == [20_000, 5_000, 5_000]
    assert world.plane.usage()["memory"][0] == 0, "blocks of dropped samples are given back too"


async def test_a_missing_record_is_an_error(world: MemoryWorld) -> None:
    async def writes(stage: Stage) -> None:
        log = stage.records(EDGE)
        await stage.write(EDGE, log.opened(), log.audio(await stage.audio(0, 3), 0))
        await stage.write(EDGE, log.audio(await stage.audio(3, 6), 2))

    error, got = await failing(world, writes)
    assert isinstance(error, StageFailed)
    assert (error.code, error.stage, got) == ("edge_incomplete", "codec", [0, 1, 2])


@pytest.mark.parametrize("count", [0, 2])
async def test_an_end_with_another_count_is_an_error(world: MemoryWorld, count: int) -> None:
    async def writes(stage: Stage) -> None:
        log = stage.records(EDGE)
        await stage.write(EDGE, log.opened(), log.audio(await stage.audio(0, 3), 0), log.end(count))

    error, got = await failing(world, writes)
    assert (error.code, error.stage, got) == ("edge_incomplete", "codec", [0, 1, 2])


async def test_missing_samples_are_an_error(world: MemoryWorld) -> None:
    async def writes(stage: Stage) -> None:
        log = stage.records(EDGE)
        await stage.write(EDGE, log.opened(), log.audio(await stage.audio(0, 3), 0))
        await stage.write(EDGE, log.audio(await stage.audio(4, 6), 1))

    error, got = await failing(world, writes)
    assert (error.code, error.stage, got) == ("audio_gap", "codec", [0, 1, 2])


async def test_a_block_that_is_gone_is_an_error_that_a_retry_may_help(world: MemoryWorld) -> None:
    async def writes(stage: Stage) -> None:
        fields = await stage.audio(0, 30_000)
        assert isinstance(fields["payload"], TensorRef)
        await stage.world.plane.release(fields["payload"])
        log = stage.records(EDGE)
        await stage.write(EDGE, log.opened(), log.audio(fields, 0))

    error, got = await failing(world, writes)
    assert isinstance(error, StageFailed)
    assert (error.code, error.retryable, error.stage, got) == ("tensor_gone", True, "codec", [])


async def raw(stage: Stage, body: bytes) -> None:
    subject = stage.subject(EDGE)
    existing = await stage.world.bus.read(subject)
    await stage.world.bus.append(subject, body, {}, expected=existing[-1].sequence if existing else 0)


async def unreadable(stage: Stage) -> None:
    await raw(stage, b"\xc1 no message")


async def of_another_request(stage: Stage) -> None:
    await raw(stage, encode(Opened(request_id="r2", edge=EDGE, epoch=1, instance="i")))


async def of_another_edge(stage: Stage) -> None:
    await raw(stage, encode(Opened(request_id="r1", edge="talker-codec", epoch=1, instance="i")))


async def not_carried(stage: Stage) -> None:
    await raw(stage, encode(TextDelta(request_id="r1", edge=EDGE, epoch=1, text="x")))


async def misshapen(stage: Stage) -> None:
    payload = Inline(data=b"\x00\x00\x00", dtype="int16", shape=(3,))
    log = stage.records(EDGE)
    await stage.write(EDGE, log.audio({"payload": payload, "sample_rate_hz": 24000, "offset": 0}, 0))


@pytest.mark.parametrize(
    ("writes", "code"),
    [
        (unreadable, "bad_record"),
        (of_another_request, "bad_record"),
        (of_another_edge, "bad_record"),
        (not_carried, "bad_record"),
        (misshapen, "tensor_corrupt"),
    ],
)
async def test_what_cannot_be_understood_is_an_error(world: MemoryWorld, writes: Writes, code: str) -> None:
    error, got = await failing(world, writes)
    assert isinstance(error, StageFailed)
    assert (error.code, got) == (code, [])


async def test_a_failure_of_one_edge_ends_the_whole_request(omni: MemoryWorld) -> None:
    async def broken(stage: Stage, work: Any) -> None:
        writer = await stage.open(EDGE)
        await writer.fail(Failure(code="stage_failed", message="the codec broke", stage="codec", retryable=True))

    async with omni.run(omni.chat("warm up")) as running:
        assert len([event async for event in running.events()]) > 3

    async def thinker(stage: Stage, work: Any) -> None:
        stage.engine = "wave"
        await broken(stage, work)

    await omni.serve("llm", thinker)
    failed = []
    for number in range(2):
        # Two thinkers share the queue; every second request meets the broken one.
        try:
            await omni.collect(omni.chat("one two"), f"f{number}")
        except StageFailed as error:
            failed.append((error.message, error.retryable, error.stage))
    assert failed == [("the codec broke", True, "codec")]
    await omni.dispatcher.settled()
    assert omni.left() == []


async def test_the_deadline_ends_a_request_that_nobody_claims(world: MemoryWorld) -> None:
    with pytest.raises(DeadlineExceeded):
        await world.collect(world.speak(deadline_s=0.1), "r1")
    await nothing_is_left(world)


async def test_the_deadline_ends_a_request_whose_reader_is_too_slow(make_world: Callable[..., Any]) -> None:
    async with make_world(buffered=1) as world:
        await world.serve_all()
        async with world.run(world.speak("abcdef", deadline_s=0.3), "r1") as running:
            began = time.monotonic()
            while time.monotonic() < began + 0.35:
                await asyncio.sleep(0.05)
            with pytest.raises(DeadlineExceeded):
                await anext(running.events())
        await nothing_is_left(world)


async def test_silence_has_the_work_published_again_once(make_world: Callable[..., Any]) -> None:
    async with make_world(idle_s=0.1) as world:
        seen = 0

        async def forgetful(stage: Stage, work: Any) -> None:
            nonlocal seen
            seen += 1
            log = stage.records(EDGE)
            if seen == 1:
                await stage.write(EDGE, log.opened(1), log.audio(await stage.audio(0, 3), 0))
            else:
                await stage.write(EDGE, log.opened(2), log.audio(await stage.audio(3, 6), 1, 2), log.end(2, 2))

        await world.serve("heart", forgetful)
        events = await world.collect(world.speak(), "r1")
        assert [event.samples.tolist() for event in events] == [[0, 1, 2], [3, 4, 5]]
        assert seen == 2
        assert [entry for entry in world.hooked if entry[0] == "republished"] == [("republished", "voice")]


async def test_silence_for_good_is_an_error(make_world: Callable[..., Any]) -> None:
    async with make_world(idle_s=0.05) as world:

        async def mute(stage: Stage, work: Any) -> None:
            """Takes the work and says nothing, ever."""

        await world.serve("heart", mute)
        with pytest.raises(InputStarved):
            await world.collect(world.speak(), "r1")
        assert world.claimed == ["heart:r1", "heart:r1"]
        await nothing_is_left(world)


async def test_silence_is_not_the_readers_own_slowness(make_world: Callable[..., Any]) -> None:
    async with make_world(idle_s=0.05, buffered=1) as world:
        await world.serve_all()
        async with world.run(world.speak("abcd"), "r1") as running:
            count = 0
            async for _ in running.events():
                await asyncio.sleep(0.15)
                count += 1
        assert count == 4
        assert not [entry for entry in world.hooked if entry[0] == "republished"]


async def test_one_edge_may_be_silent_while_another_moves(make_world: Callable[..., Any]) -> None:
    async with make_world(idle_s=0.2) as world:

        async def long_clause(stage: Stage, work: Any) -> None:
            text, audio = stage.records("thinker-gateway"), stage.records(EDGE)
            await stage.write("thinker-gateway", text.opened())
            for seq in range(12):
                await asyncio.sleep(0.05)
                await stage.write("thinker-gateway", text.text("x", seq))
            await stage.write("thinker-gateway", text.end(12))
            await stage.write(EDGE, audio.opened(), audio.end(0))

        await world.serve("llm", long_clause)
        assert len(await world.collect(world.chat("x"))) == 12
        assert not [entry for entry in world.hooked if entry[0] == "republished"]


async def test_a_tombstone_of_others_ends_a_silent_request(make_world: Callable[..., Any]) -> None:
    async with make_world(idle_s=0.05) as world:
        async with world.run(world.speak(), "r1") as running:
            await (await world.bus.key_value("requests")).put("r1", b"cancelled")
            with pytest.raises(Cancelled):
                await anext(running.events())
        await nothing_is_left(world)
