"""Whole runs through scripted stages: what arrives, in which order, and that nothing stays behind."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from omnistage.contracts import AudioDelta, Cancel, Forget, Presence, TextDelta, TextDone, encode
from omnistage.errors import InvalidRequest, StageFailed, Unavailable
from omnistage.runtime.meta import seconds_since_sent
from omnistage_gateway.dispatch.interface import AudioPiece

if TYPE_CHECKING:
    from services.gateway.tests.dispatch.conftest import MemoryWorld, Stage


async def assert_nothing_left(world: MemoryWorld, *request_ids: str, tombstone: bytes) -> None:
    await world.dispatcher.settled()
    assert world.left() == []
    assert world.followed() == []
    assert world.plane.usage()["memory"][0] == 0, "every block was given back"
    assert (world.dispatcher.running, world.dispatcher.waiting, world.dispatcher.clearing) == (0, 0, 0)
    for request_id in request_ids:
        assert await world.tombstone(request_id) == tombstone


async def test_speech_arrives_sample_by_sample_and_leaves_nothing(speech: MemoryWorld) -> None:
    events = await speech.collect(speech.speak("hello"), "r1")
    pieces = [event for event in events if isinstance(event, AudioPiece)]
    assert len(pieces) == len(events) == 5
    samples = np.concatenate([piece.samples for piece in pieces])
    assert samples.tolist() == (np.arange(50_000) % 32768).tolist()
    assert {piece.sample_rate_hz for piece in pieces} == {24000}
    await assert_nothing_left(speech, "r1", tombstone=b"done")
    assert speech.told(Forget) == ["r1"]
    assert speech.told(Cancel) == []
    assert sorted(speech.finished) == ["heart:r1", "wave:r1"]


async def test_omni_delivers_text_and_audio_together_each_in_order(omni: MemoryWorld) -> None:
    events = await omni.collect(omni.chat("one two three"), "r1")
    text = [event for event in events if isinstance(event, TextDelta | TextDone)]
    assert [event.text for event in text if isinstance(event, TextDelta)] == ["one ", "two ", "three "]
    assert isinstance(text[-1], TextDone)
    assert text[-1].completion_tokens == 3
    samples = np.concatenate([event.samples for event in events if isinstance(event, AudioPiece)])
    assert samples.tolist() == (np.arange(110_000) % 32768).tolist()
    await assert_nothing_left(omni, "r1", tombstone=b"done")


async def test_a_shorter_way_than_the_models_own_uses_its_engines_only(omni: MemoryWorld) -> None:
    events = await omni.collect(omni.chat("just text", "text"), "r1")
    assert [type(event) for event in events] == [TextDelta, TextDelta, TextDone]
    assert omni.claimed == ["llm:r1"]
    await assert_nothing_left(omni, "r1", tombstone=b"done")


async def test_empty_answers_are_answers(world: MemoryWorld) -> None:
    async def silent(stage: Stage, work: Any) -> None:
        log = stage.records("codec-gateway")
        await stage.write("codec-gateway", log.opened(), log.end(0))

    await world.serve("heart", silent)
    assert await world.collect(world.speak("")) == []


async def test_a_piece_without_samples_is_no_news(world: MemoryWorld) -> None:
    async def script(stage: Stage, work: Any) -> None:
        log = stage.records("codec-gateway")
        pieces = [log.audio(await stage.audio(start, stop), seq) for seq, (start, stop) in enumerate([(0, 0), (0, 5)])]
        await stage.write("codec-gateway", log.opened(), *pieces, log.end(2))

    await world.serve("heart", script)
    events = await world.collect(world.speak())
    assert [len(event.samples) for event in events if isinstance(event, AudioPiece)] == [5]


async def test_many_requests_share_the_slots_and_none_mixes_with_another(make_world: Callable[..., Any]) -> None:
    async with make_world(slots=3) as world:
        await world.serve_all()
        most = 0

        async def one(number: int) -> None:
            nonlocal most
            async with world.run(world.speak("x" * (number % 4 + 1)), f"r{number}") as running:
                most = max(most, world.dispatcher.running)
                samples = [event.samples async for event in running.events()]
            assert sum(map(len, samples)) == 10_000 * (number % 4 + 1)

        async with asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(one(number))
        assert most == 3
        await assert_nothing_left(world, *(f"r{number}" for number in range(40)), tombstone=b"done")
        waits = [entry for entry in world.hooked if entry[0] == "waited"]
        assert len(waits) == 40
        assert max(wait[2] for wait in waits) > min(wait[2] for wait in waits)


async def test_two_gateways_each_fill_half_of_the_slots(speech: MemoryWorld) -> None:
    other = Presence(
        service="gateway", instance="gw-2", state="ready", version="0", contract=1, pid=2, host="h", started=0.0
    )
    await speech.bus.send(speech.bus.subjects.presence("gateway", "gw-2"), encode(other))
    most = 0

    async def one() -> None:
        nonlocal most
        async with speech.run(speech.speak()) as running:
            most = max(most, speech.dispatcher.running)
            assert len([event async for event in running.events()]) == 3

    async with asyncio.TaskGroup() as group:
        for _ in range(12):
            group.create_task(one())
    assert most == 2, "four slots, two gateways"


async def test_hooks_tell_the_story_of_a_request(omni: MemoryWorld) -> None:
    await omni.collect(omni.chat("hi"), "r1")
    story = [entry for entry in omni.hooked if entry[0] != "hop"]
    assert [entry[:2] for entry in story] == [
        ("waited", "chat"), ("first_event", "chat"), ("first_event", "chat"), ("finished", "chat"),
    ]  # fmt: skip
    assert [entry[2] for entry in story[1:]] == ["text", "audio", "ok"]
    hops = [entry for entry in omni.hooked if entry[0] == "hop"]
    assert {entry[1] for entry in hops} == {"thinker-gateway", "codec-gateway"}
    assert all(0 <= entry[2] < 5 for entry in hops)


async def test_work_carries_deadline_tenant_and_priority(world: MemoryWorld) -> None:
    seen: list[Any] = []

    async def note(stage: Stage, work: Any) -> None:
        seen.append((stage.meta, work))
        age_s = seconds_since_sent(stage.headers)
        assert age_s is not None
        assert age_s < 5
        log = stage.records("codec-gateway")
        await stage.write("codec-gateway", log.opened(), log.end(0))

    await world.serve("heart", note)
    await world.collect(world.speak("hi", tenant="acme", priority="batch", deadline_s=20.0), "r1")
    ((meta, work),) = seen
    assert (meta.tenant, meta.priority, meta.contract) == ("acme", "batch", 1)
    assert 15 < meta.remaining_s <= 20.001
    assert (work.route, work.node, work.text) == ({"talker": "heart", "codec": "wave"}, "talker", "hi")


@pytest.mark.parametrize(("streamed", "reading"), [(True, "stream"), (False, "whole")])
async def test_work_says_how_the_client_takes_its_answer(world: MemoryWorld, streamed: bool, reading: str) -> None:
    seen: list[str] = []

    async def note(stage: Stage, work: Any) -> None:
        seen.append(stage.meta.reading)
        log = stage.records("codec-gateway")
        await stage.write("codec-gateway", log.opened(), log.end(0))

    await world.serve("heart", note)
    await world.collect(world.speak("hi", streamed=streamed), "r1")
    assert seen == [reading]


async def test_the_trace_goes_on_in_the_headers(world: MemoryWorld) -> None:
    from opentelemetry import trace
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

    seen: list[str] = []

    async def note(stage: Stage, work: Any) -> None:
        seen.append(stage.meta.trace["traceparent"])
        log = stage.records("codec-gateway")
        await stage.write("codec-gateway", log.opened(), log.end(0))

    await world.serve("heart", note)
    context = SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1))
    with trace.use_span(NonRecordingSpan(context)):
        await world.collect(world.speak("hi"))
    assert seen == [f"00-{0xABC:032x}-{0xDEF:016x}-01"]


async def test_a_slow_reader_holds_the_reading_and_loses_nothing(make_world: Callable[..., Any]) -> None:
    async with make_world(buffered=4) as world:
        done = asyncio.Event()

        async def flood(stage: Stage, work: Any) -> None:
            writer = await stage.open("codec-gateway")
            for number in range(300):
                await writer.send(AudioDelta, **await stage.audio(number * 10, number * 10 + 10))
            await writer.finish()
            done.set()

        await world.serve("heart", flood)
        async with world.run(world.speak(), "r1") as running:
            await done.wait()
            for _ in range(50):
                await asyncio.sleep(0)
            assert running.buffered == 4
            assert not running.ended
            got = [event.samples[0] async for event in running.events()]
        assert got == [number * 10 for number in range(300)]
        await assert_nothing_left(world, "r1", tombstone=b"done")


async def test_one_id_is_good_for_one_request(speech: MemoryWorld) -> None:
    async with speech.run(speech.speak(), "r1") as running:
        with pytest.raises(InvalidRequest) as refused:
            await speech.collect(speech.speak(), "r1")
        assert refused.value.code == "duplicate_request_id"
        assert len([event async for event in running.events()]) == 3


async def test_what_is_offered_follows_the_fleet(world: MemoryWorld) -> None:
    assert set(world.dispatcher.offered()) == {"voice", "chat"}
    assert world.dispatcher.ready() == (True, "")
    await world.announce(state="draining")
    while world.dispatcher.offered():
        await asyncio.sleep(0)
    ready, why = world.dispatcher.ready()
    assert not ready
    assert "not ready: voice, chat" in why
    assert "engine 'heart' of the talker: talker-1: draining" in why


async def test_a_model_that_nobody_has_is_refused_after_the_grace(make_world: Callable[..., Any]) -> None:
    async with make_world(grace_s=0.05) as world:
        await world.announce(state="draining")
        while world.dispatcher.offered():
            await asyncio.sleep(0)
        with pytest.raises(Unavailable) as refused:
            await world.collect(world.speak())
        assert refused.value.code == "model_not_ready"
        assert refused.value.retry_after_s is not None
        assert ("refused", "voice", "model_not_ready") in world.hooked
        assert world.left() == []


async def test_a_model_that_comes_back_within_the_grace_is_waited_for(make_world: Callable[..., Any]) -> None:
    async with make_world(grace_s=3600.0) as world:
        await world.serve_all()
        await world.announce(state="draining")
        while world.dispatcher.offered():
            await asyncio.sleep(0)
        async with asyncio.TaskGroup() as group:
            waits = group.create_task(world.collect(world.speak("abc")))
            while not world.dispatcher.waiting:
                await asyncio.sleep(0)
            await world.announce()
        assert len(waits.result()) == 3


async def test_draining_lets_runs_finish_and_takes_no_more(speech: MemoryWorld) -> None:
    async with speech.run(speech.speak("ab"), "r1") as running:
        assert not await speech.dispatcher.drain(0.01)
        with pytest.raises(Unavailable, match="shutting down"):
            await speech.collect(speech.speak(), "r2")
        assert len([event async for event in running.events()]) == 2
    assert await speech.dispatcher.drain(1.0)


async def test_closing_ends_runs_with_an_error_and_clears_up(make_world: Callable[..., Any]) -> None:
    async with make_world(late_s=3600.0, clear_s=3600.0) as world:
        async with world.run(world.speak(), "r1") as running:
            await world.dispatcher.close()
            with pytest.raises(Unavailable, match="shutting down"):
                await anext(running.events())
        await world.dispatcher.close()
        await assert_nothing_left(world, "r1", tombstone=b"cancelled")
        assert world.told(Cancel) == ["r1"]


async def test_an_error_of_the_plan_leaves_nothing(speech: MemoryWorld) -> None:
    plan = speech.speak()
    broken = type(plan)(plan.model, plan.spec, plan.pipeline, lambda *_: (_ for _ in ()).throw(StageFailed("no")))
    with pytest.raises(StageFailed, match="no"):
        await speech.collect(broken, "r1")
    assert (speech.claimed, await speech.tombstone("r1")) == ([], None), "it never began"
    await assert_nothing_left(speech, tombstone=b"")
