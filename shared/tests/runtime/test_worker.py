"""A worker turns whatever its handler does into the right end of the request. Real bus rules, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from omnistage.contracts import (
    End,
    Failed,
    Opened,
    ReadRecord,
    Record,
    TextDelta,
    encode,
)
from omnistage.errors import InvalidRequest, QueueFull
from omnistage.observability import names
from omnistage.runtime import patience
from omnistage.runtime.context import REQUESTS_BUCKET, RequestContext
from omnistage.runtime.worker import HEARTBEAT_S, STALL_S
from omnistage.testing.text_stage import text_stage
from omnistage.transport import BusOptions
from omnistage.transport.memory import MemoryBroker


async def say(context: RequestContext[Any], *words: str) -> None:
    for word in words:
        await context.output("gateway").send(TextDelta, text=word)


def words(records: Sequence[Record | ReadRecord]) -> list[str]:
    return [record.text for record in records if isinstance(record, TextDelta)]


async def test_a_handler_that_finishes_leaves_a_whole_log_and_no_work() -> None:
    async def handler(context: RequestContext[Any], _work: Any) -> None:
        await say(context, "a", "b")
        await context.output("gateway").finish()

    async with text_stage(handler) as one:
        await one.submit("r")
        records = await one.ended("r")
        assert isinstance(records[0], Opened)
        assert words(records) == ["a", "b"]
        assert records[-1] == End(request_id="r", edge="thinker-gateway", epoch=1, seq=2, count=2)
        await one.worker.count_pending(one.hosted)
        assert (one.hosted.queue, one.hosted.running) == (0, {})
        assert one.metrics.value(names.WORK_DONE, model="m", outcome="ok") == 1


@pytest.mark.parametrize(
    ("error", "status", "param", "code"),
    [
        (InvalidRequest("no", param="input"), 400, "input", "invalid_value"),
        (QueueFull("full"), 503, None, "queue_full"),
        (ZeroDivisionError("secret"), 500, None, "stage_failed"),
    ],
)
async def test_an_error_ends_the_log_as_itself(error: Exception, status: int, param: str | None, code: str) -> None:
    async def handler(context: RequestContext[Any], _work: Any) -> None:
        await say(context, "a")
        raise error

    async with text_stage(handler) as one:
        await one.submit("r")
        records = await one.ended("r")
        last = records[-1]
        assert isinstance(last, Failed)
        assert (last.failure.status, last.failure.param, last.failure.code) == (status, param, code)
        assert last.failure.stage == "thinker"
        assert "secret" not in last.failure.message
        await one.submit("next")
        assert isinstance((await one.ended("next"))[-1], Failed)


async def test_a_writer_waits_for_room_in_a_full_log_stream() -> None:
    began = asyncio.Event()

    async def handler(context: RequestContext[Any], _work: Any) -> None:
        began.set()
        await say(context, "a" * 200, "b" * 200)
        await context.output("gateway").finish()

    async with text_stage(handler, options=BusOptions(log_max_bytes=900)) as one:
        other = one.subject("other")
        await one.bus.append(other, b"x" * 500, {}, expected=0)
        await one.submit("r")
        await began.wait()
        await asyncio.sleep(0.2)
        assert one.worker.running == ("r",)
        await one.bus.purge_request("other")
        assert words(await one.ended("r")) == ["a" * 200, "b" * 200]


async def test_a_request_that_finds_no_room_ends_in_the_room_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "ROOM_S", 0.15)

    async def handler(context: RequestContext[Any], _work: Any) -> None:
        await say(context, *(["a" * 200] * 9))

    async with text_stage(handler, options=BusOptions(log_max_bytes=900)) as one:
        await one.submit("r")
        (last,) = await one.ended("r")
        assert isinstance(last, Failed)
        assert (last.failure.code, last.failure.status, last.failure.retryable) == ("queue_full", 503, True)


async def test_a_handler_that_forgets_an_end_is_a_failure() -> None:
    async def handler(context: RequestContext[Any], _work: Any) -> None:
        await say(context, "a")

    async with text_stage(handler) as one:
        await one.submit("r")
        last = (await one.ended("r"))[-1]
        assert isinstance(last, Failed)
        assert "thinker-gateway" in last.failure.message


async def test_a_deadline_ends_the_work() -> None:
    async def handler(_context: RequestContext[Any], _work: Any) -> None:
        await asyncio.Event().wait()

    async with text_stage(handler) as one:
        await one.submit("r", deadline_s=0.1)
        last = (await one.ended("r"))[-1]
        assert isinstance(last, Failed)
        assert (last.failure.status, last.failure.code) == (504, "deadline_exceeded")


async def test_cancelling_stops_the_handler_and_frees_its_slot() -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def handler(_context: RequestContext[Any], _work: Any) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with text_stage(handler) as one:
        await one.submit("r")
        await started.wait()
        await one.worker.forget("r")
        await one.worker.forget("r")
        await one.idle()
        assert stopped.is_set()
        assert one.hosted.running == {}
        assert not any(isinstance(record, End | Failed) for record in await one.records("r"))
        await one.worker.count_pending(one.hosted)
        assert one.hosted.queue == 0
        assert one.metrics.value(names.CANCELLATIONS, model="m") == 1


async def test_work_of_a_request_that_is_over_is_dropped() -> None:
    called = False

    async def handler(_context: RequestContext[Any], _work: Any) -> None:
        nonlocal called
        called = True

    async with text_stage(handler) as one:
        await (await one.bus.key_value(REQUESTS_BUCKET)).put("r", b"cancelled")
        await one.submit("r")
        async with asyncio.timeout(5):
            while one.metrics.value(names.WORK_DONE, model="m", outcome="cancelled") == 0:
                await asyncio.sleep(0.005)
        assert not called
        assert await one.records("r") == []


async def test_unreadable_work_is_buried_and_the_worker_goes_on() -> None:
    async def handler(context: RequestContext[Any], _work: Any) -> None:
        await context.output("gateway").finish()

    async with text_stage(handler) as one:
        await one.submit("bad", body=b"\xc1")
        await one.submit("good")
        assert isinstance((await one.ended("good"))[-1], End)
        await one.worker.count_pending(one.hosted)
        assert one.hosted.queue == 0


async def test_a_stopping_worker_hands_its_work_to_another_which_goes_on_where_it_was() -> None:
    started = asyncio.Event()

    async def first(context: RequestContext[Any], _work: Any) -> None:
        await say(context, "a", "b")
        started.set()
        await asyncio.Event().wait()

    async def second(context: RequestContext[Any], _work: Any) -> None:
        assert context.resumed
        assert words(context.output("gateway").earlier) == ["a", "b"]
        await say(context, "c")
        await context.output("gateway").finish()

    broker = MemoryBroker()
    async with text_stage(first, broker, "one") as one:
        await one.submit("r")
        await started.wait()
        async with text_stage(second, broker, "two") as two:
            await one.worker.drain(0)
            records = await two.ended("r")
            assert words(records) == ["a", "b", "c"]
            assert [record.epoch for record in records if isinstance(record, TextDelta)] == [1, 1, 2]
            assert two.metrics.value(names.RESUMPTIONS, model="m") == 1


async def test_a_holder_that_was_overtaken_can_write_nothing_more() -> None:
    started, overtaken = asyncio.Event(), asyncio.Event()

    async def slow(context: RequestContext[Any], _work: Any) -> None:
        await say(context, "a")
        started.set()
        await overtaken.wait()
        await say(context, "stale")

    async with text_stage(slow) as one:
        await one.submit("r")
        await started.wait()
        last = (await one.bus.read(one.subject("r")))[-1].sequence
        opened = Opened(request_id="r", edge="thinker-gateway", epoch=2, seq=1, instance="two")
        await one.bus.append(one.subject("r"), encode(opened), {}, expected=last)
        overtaken.set()
        await one.idle()
        assert words(await one.records("r")) == ["a"]
        assert one.metrics.value(names.WORK_DONE, model="m", outcome="fenced") == 1


async def test_no_more_requests_run_than_there_are_slots() -> None:
    running, most, go = 0, 0, asyncio.Event()

    async def handler(context: RequestContext[Any], _work: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go.wait()
        running -= 1
        await context.output("gateway").finish()

    async with text_stage(handler) as one:
        for number in range(5):
            await one.submit(f"r{number}")
        async with asyncio.timeout(5):
            while running < one.hosted.spec.slots:
                await asyncio.sleep(0.005)
        await one.worker.count_pending(one.hosted)
        assert one.hosted.queue == 3
        go.set()
        for number in range(5):
            assert isinstance((await one.ended(f"r{number}"))[-1], End)
        assert most == one.hosted.spec.slots


async def test_work_that_has_ended_is_kept_until_the_request_is_over() -> None:
    async def handler(context: RequestContext[Any], _work: Any) -> None:
        await context.output("gateway").finish()

    async with text_stage(handler) as one:
        await one.submit("r")
        await one.ended("r")
        assert one.worker.held == ("r",)
        assert one.hosted.running == {}
        await one.worker.forget("r")
        assert len(one.worker.held) == 0


@pytest.mark.parametrize("while_running", [True, False])
async def test_an_edge_is_written_again_from_where_it_is_needed(while_running: bool) -> None:
    runs, go = 0, asyncio.Event()

    async def handler(context: RequestContext[Any], _work: Any) -> None:
        nonlocal runs
        runs += 1
        position = len(context.output("gateway").earlier)
        await say(context, *(f"{word}{runs}" for word in "abcd"[position:]))
        if runs == 1 and while_running:
            await go.wait()
        await context.output("gateway").finish()

    async with text_stage(handler) as one:
        await one.submit("r")
        if while_running:
            async with asyncio.timeout(5):
                while len(await one.records("r")) < 5:
                    await asyncio.sleep(0.005)
        else:
            await one.ended("r")
        one.worker.redo("r", "no-such-edge", 0)
        one.worker.redo("r", "thinker-gateway", 2)
        async with asyncio.timeout(5):
            while not isinstance((await one.records("r"))[-1], End) or runs < 2:
                await asyncio.sleep(0.005)
        assert words(await one.records("r")) == ["a1", "b1", "c1", "d1", "c2", "d2"]
        records = await one.records("r")
        assert [record.seq for record in records if isinstance(record, TextDelta)] == [0, 1, 2, 3, 2, 3]
        assert isinstance(records[-1], End)
        assert records[-1].count == 4
        assert runs == 2


async def test_the_work_of_a_stuck_engine_goes_to_another_instance_and_not_back_to_its_own() -> None:
    stalled_s = 0.0

    async def hang(context: RequestContext[Any], _work: Any) -> None:
        await say(context, "a")
        await asyncio.Event().wait()

    async def go_on(context: RequestContext[Any], _work: Any) -> None:
        await say(context, "b")
        await context.output("gateway").finish()

    broker = MemoryBroker()
    async with text_stage(hang, broker, "one") as one:
        assert one.hosted.loaded is not None
        one.hosted.loaded = replace(one.hosted.loaded, stalled_s=lambda: stalled_s)
        await one.submit("r")
        async with asyncio.timeout(10):
            while not words(await one.records("r")):
                await asyncio.sleep(0.01)
        stalled_s = STALL_S + 0.1
        await asyncio.sleep(3 * HEARTBEAT_S)
        assert [record.instance for record in await one.records("r") if isinstance(record, Opened)] == ["one"]
        async with text_stage(go_on, broker, "two") as two:
            records = await two.ended("r")
            assert [record.instance for record in records if isinstance(record, Opened)] == ["one", "two"]
            assert words(records) == ["a", "b"]
