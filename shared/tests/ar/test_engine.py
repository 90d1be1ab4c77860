"""The engine: its thread and its asyncio side, with a runner that checks every step."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Hashable
from contextlib import aclosing
from typing import Any

import pytest

from omnistage.ar.counters import StepReport
from omnistage.ar.engine import SWITCH_INTERVAL_S, AREngine
from omnistage.ar.request import ARRequest
from omnistage.ar.runner import Emitted
from omnistage.ar.scheduler import Batch, Scheduler
from omnistage.ar.stream import StepOutput
from omnistage.errors import Cancelled, InvalidRequest, StageFailed, Unavailable

Expected = Callable[[tuple[Hashable, ...], int], list[Hashable]]


class Rig:
    """An engine with its parts at hand."""

    def __init__(self, runner: Any, scheduler: Scheduler, **options: Any) -> None:
        self.runner = runner
        self.scheduler = scheduler
        self.engine = AREngine(runner, scheduler, name="test", **options)
        self.engine.start()

    async def tokens(self, request: ARRequest) -> list[Hashable]:
        return [output.token for output in await self.outputs(request)]

    async def outputs(self, request: ARRequest) -> list[StepOutput]:
        async with aclosing(self.engine.generate(request)) as items:
            return [item async for item in items]

    async def idle(self) -> None:
        """Wait until nothing runs or waits, then check that all blocks are free."""
        async with asyncio.timeout(10):
            while self.scheduler.running or self.scheduler.waiting:
                await asyncio.sleep(0.002)
        assert self.scheduler.blocks.num_free == self.scheduler.blocks.num_blocks


@pytest.fixture
async def make_rig(runner: Any, make_scheduler: Callable[..., Scheduler]) -> AsyncGenerator[Callable[..., Rig], None]:
    rigs: list[Rig] = []

    def make(num_blocks: int = 64, max_unread: int = 64, on_step: Any = None, **limits: int) -> Rig:
        rigs.append(Rig(runner, make_scheduler(num_blocks, **limits), max_unread=max_unread, on_step=on_step))
        return rigs[-1]

    yield make
    runner.gate.set()
    for rig in rigs:
        await rig.engine.close()


def request(name: str, length: int = 5, new: int = 6, **more: Any) -> ARRequest:
    return ARRequest(name, tuple(f"{name}{index}" for index in range(length)), new, **more)


async def test_many_at_once_each_get_their_own(make_rig: Callable[..., Rig], expected: Expected) -> None:
    rig = make_rig(24, max_running=4, max_batch_tokens=8, max_chunk_tokens=3)
    requests = [request(f"r{index}", 3 + 2 * index, 4 + index) for index in range(10)]
    answers = await asyncio.gather(*(rig.tokens(item) for item in requests))
    assert answers == [expected(item.prompt, item.max_new_tokens) for item in requests]
    await rig.idle()
    assert max(len(batch) for batch in rig.runner.batches) == 4


async def test_the_last_output_says_why_and_positions_count_up(
    make_rig: Callable[..., Rig], expected: Expected
) -> None:
    rig = make_rig()
    outputs = await rig.outputs(request("a", new=4))
    assert [(output.index, output.finish_reason) for output in outputs] == [
        (0, None),
        (1, None),
        (2, None),
        (3, "length"),
    ]
    third = expected(request("a").prompt, 3)[2]
    outputs = await rig.outputs(request("a", new=9, stop_tokens=frozenset([third])))
    assert (outputs[-1].token, outputs[-1].finish_reason, len(outputs)) == (third, "stop", 3)
    assert outputs[0].num_cached == 4


@pytest.mark.parametrize("known", [0, 1, 3, 5])
async def test_a_resumed_answer_equals_the_undisturbed_one(
    make_rig: Callable[..., Rig], expected: Expected, known: int
) -> None:
    rig = make_rig()
    whole = expected(request("a").prompt, 6)
    outputs = await rig.outputs(request("a", emitted=tuple(whole[:known])))
    assert [output.token for output in outputs] == whole[known:]
    assert [output.index for output in outputs] == list(range(known, 6))


@pytest.mark.parametrize(("emitted", "reason"), [((1, 2), "length"), ((1, 99), "stop"), ((1, 2, 3), "length")])
async def test_a_complete_answer_is_not_continued(
    make_rig: Callable[..., Rig], emitted: tuple[int, ...], reason: str
) -> None:
    rig = make_rig()
    outputs = await rig.outputs(request("a", new=2, emitted=emitted, stop_tokens=frozenset([99])))
    assert outputs == [StepOutput(None, len(emitted), finish_reason=reason)]  # type: ignore[arg-type]
    assert not rig.runner.batches


async def test_abort_between_steps_frees_everything_and_tells_the_reader(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    items = rig.engine.generate(request("a", new=200))
    await anext(items)
    rig.engine.abort("a")
    with pytest.raises(Cancelled):
        async for _ in items:
            pass
    await rig.idle()
    rig.engine.abort("a")
    assert await rig.tokens(request("a", new=1))


async def test_leaving_the_iterator_frees_everything(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    async with aclosing(rig.engine.generate(request("a", new=200))) as items:
        await anext(items)
    await rig.idle()


async def test_a_cancelled_reader_frees_everything(make_rig: Callable[..., Rig], runner: Any) -> None:
    rig = make_rig()
    runner.gate.clear()
    task = asyncio.ensure_future(rig.tokens(request("a", new=200)))
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    runner.gate.set()
    await rig.idle()


async def test_abort_while_waiting(make_rig: Callable[..., Rig], runner: Any) -> None:
    rig = make_rig(max_running=1)
    runner.gate.clear()
    first = asyncio.ensure_future(rig.tokens(request("a", new=3)))
    second = asyncio.ensure_future(rig.tokens(request("b", new=3)))
    await asyncio.sleep(0.02)
    rig.engine.abort("b")
    runner.gate.set()
    with pytest.raises(Cancelled):
        await second
    assert len(await first) == 3
    assert all(name == "a" for batch in runner.batches for name, _, _ in batch)


async def test_a_failing_row_fails_its_own_sequence_only(
    make_rig: Callable[..., Rig], runner: Any, expected: Expected
) -> None:
    rig = make_rig()

    def break_b(batch: Batch) -> None:
        if any(row.sequence.request_id == "b" and row.start >= 7 for row in batch.rows):
            raise RuntimeError("broken kernel")

    runner.before_step = break_b
    results = await asyncio.gather(*(rig.tokens(request(name, new=8)) for name in "abc"), return_exceptions=True)
    assert isinstance(results[1], StageFailed)
    assert "RuntimeError" in str(results[1])
    assert [results[0], results[2]] == [expected(request(name).prompt, 8) for name in "ac"]
    assert rig.engine.counters.failed_steps >= 1
    assert rig.runner.discarded, "the failed sequence's own blocks are made harmless"
    await rig.idle()


async def test_a_row_without_a_token_fails_alone(make_rig: Callable[..., Rig], runner: Any, expected: Expected) -> None:
    rig = make_rig()
    step = runner.step

    def without_b(batch: Batch) -> list[Emitted]:
        emitted = step(batch)
        names = [row.sequence.request_id for row in batch.emitting]
        return [Emitted(0, failure="not finite") if n == "b" else e for n, e in zip(names, emitted, strict=True)]

    runner.step = without_b
    results = await asyncio.gather(*(rig.tokens(request(name)) for name in "ab"), return_exceptions=True)
    assert results[0] == expected(request("a").prompt, 6)
    assert isinstance(results[1], StageFailed)
    assert results[1].message == "not finite"
    await rig.idle()


async def test_a_reader_that_is_behind_is_waited_for(
    make_rig: Callable[..., Rig], runner: Any, expected: Expected
) -> None:
    rig = make_rig(max_unread=3)
    slow = rig.engine.generate(request("slow", new=12))
    first = await anext(slow)
    assert await rig.tokens(request("quick", new=20)) == expected(request("quick").prompt, 20)
    computed = sum(1 for batch in runner.batches for name, _, _ in batch if name == "slow")
    assert computed <= 1 + 3 + 1, "no more than the bound was computed ahead"
    rest = [output.token async for output in slow]
    assert [first.token, *rest] == expected(request("slow").prompt, 12)


async def test_due_can_change_while_a_request_waits(make_rig: Callable[..., Rig], runner: Any) -> None:
    rig = make_rig(max_running=1)
    runner.gate.clear()
    tasks = [asyncio.ensure_future(rig.tokens(request(name, new=2))) for name in "abc"]
    await asyncio.sleep(0.02)
    rig.engine.set_due("c", 1.0)
    rig.engine.set_due("unknown", 1.0)
    runner.gate.set()
    await asyncio.gather(*tasks)
    assert [name for batch in runner.batches for name, start, _ in batch if start == 0] == ["a", "c", "b"]


@pytest.mark.parametrize(("length", "emitted"), [(0, 0), (16, 0), (17, 0), (12, 5)])
async def test_what_does_not_fit_is_refused(make_rig: Callable[..., Rig], length: int, emitted: int) -> None:
    rig = make_rig(max_length=16)
    with pytest.raises(InvalidRequest, match="16 tokens"):
        await rig.tokens(request("a", length, new=99, emitted=tuple(range(emitted))))


async def test_a_request_id_in_use_is_refused(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    items = rig.engine.generate(request("a", new=200))
    await anext(items)
    with pytest.raises(InvalidRequest, match="in use"):
        await rig.tokens(request("a"))
    assert (await anext(items)).index == 1, "the one that runs is not disturbed"
    await items.aclose()


async def test_close_fails_what_runs_and_refuses_what_comes(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig(max_running=1)
    tasks = [asyncio.ensure_future(rig.tokens(request(name, new=200))) for name in "ab"]
    # One turn: both are handed over, and a fast machine has not finished them yet.
    await asyncio.sleep(0)
    await rig.engine.close()
    await rig.engine.close()
    for result in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(result, Unavailable)
    with pytest.raises(Unavailable):
        await rig.tokens(request("c"))
    assert not rig.engine.alive
    assert not any(thread.name == "test-steps" for thread in threading.enumerate())


async def test_a_broken_loop_is_never_silent(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()

    def broken() -> Batch:
        raise KeyError("policy bug")

    rig.scheduler.schedule = broken  # type: ignore[method-assign]
    with pytest.raises(Unavailable, match="broke"):
        await rig.tokens(request("a"))
    assert not rig.engine.alive
    with pytest.raises(Unavailable):
        await rig.tokens(request("b"))


async def test_counters_and_reports_tell_what_happened(make_rig: Callable[..., Rig]) -> None:
    reports: list[StepReport] = []
    rig = make_rig(on_step=reports.append)
    await rig.tokens(request("a", 5, new=3))
    facts = rig.engine.facts()
    assert (facts["steps"], facts["tokens"], facts["emitted_tokens"]) == (3.0, 7.0, 3.0)
    assert (facts["running"], facts["waiting"], facts["kv_use"]) == (0.0, 0.0, 0.0)
    assert facts["step_time_s"] > 0
    assert [(report.rows, report.tokens) for report in reports] == [(1, 5), (1, 1), (1, 1)]
    assert [report.blocks_used for report in reports] == [2, 2, 0]
    assert rig.engine.counters.last_step_at > 0


async def test_a_stuck_step_shows(make_rig: Callable[..., Rig], runner: Any) -> None:
    rig = make_rig()
    await rig.tokens(request("a", new=2))
    assert rig.engine.stalled_s == 0.0
    runner.gate.clear()
    task = asyncio.ensure_future(rig.tokens(request("b", new=2)))
    await asyncio.sleep(0.05)
    assert rig.engine.stalled_s > 0.0
    assert rig.engine.facts()["stalled_s"] > 0.0
    runner.gate.set()
    await task
    assert rig.engine.stalled_s == 0.0


async def test_frames_are_tokens_too(make_rig: Callable[..., Rig], runner: Any) -> None:
    rig = make_rig()
    step = runner.step
    runner.step = lambda batch: [Emitted((int(item.token) % 7, index)) for index, item in enumerate(step(batch))]
    first = await rig.outputs(request("a", 8, new=9))
    assert all(isinstance(output.token, tuple) for output in first)
    known = tuple(output.token for output in first[:5])
    resumed = await rig.outputs(request("a", 8, new=9, emitted=known))
    assert [output.token for output in resumed] == [output.token for output in first[5:]]
    assert resumed[0].num_cached == 8


async def test_the_step_thread_lets_the_event_loop_in(make_rig: Callable[..., Rig]) -> None:
    make_rig()
    assert sys.getswitchinterval() <= SWITCH_INTERVAL_S


def test_a_reader_whose_loop_is_gone_is_cleared_up(runner: Any, make_scheduler: Any) -> None:
    rig = Rig(runner, make_scheduler())

    async def begin() -> None:
        runner.gate.clear()
        rig.engine._open(request("a", new=20))

    asyncio.run(begin())
    runner.gate.set()

    async def check() -> None:
        await rig.idle()
        assert await rig.tokens(request("b", new=2))
        await rig.engine.close()

    asyncio.run(check())


async def test_a_sequence_whose_input_is_late_is_parked_while_others_run(
    make_rig: Callable[..., Rig], expected: Expected
) -> None:
    rig = make_rig(max_running=2)
    arrived = 2
    late = request("late", new=6, ready=lambda generated: generated < arrived)
    async with aclosing(rig.engine.generate(late)) as outputs:
        seen = [await anext(outputs), await anext(outputs)]
        other = request("other", new=8)
        assert await rig.tokens(other) == expected(other.prompt, 8)
        assert rig.scheduler.running[0].num_generated == 2
        arrived = 6
        rig.engine.wake()
        async for output in outputs:
            seen.append(output)
    assert [output.token for output in seen] == expected(late.prompt, 6)
    await rig.idle()


async def test_a_parked_sequence_gives_its_blocks_up_first_and_goes_on_all_the_same(
    make_rig: Callable[..., Rig], expected: Expected
) -> None:
    rig = make_rig(8, max_length=32)
    arrived = 1
    late = request("late", length=8, new=8, ready=lambda generated: generated < arrived)
    async with aclosing(rig.engine.generate(late)) as outputs:
        seen = [(await anext(outputs)).token]
        other = request("other", length=8, new=24)
        assert await rig.tokens(other) == expected(other.prompt, 24)
        assert rig.scheduler.num_preemptions == 1
        arrived = 8
        rig.engine.wake()
        seen += [output.token async for output in outputs]
    assert seen == expected(late.prompt, 8)
    await rig.idle()


async def test_a_parked_sequence_can_be_cancelled(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig()
    late = request("late", ready=lambda _generated: False)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(rig.tokens(late))
        await asyncio.sleep(0.05)
        assert not rig.runner.batches
        task.cancel()
    await rig.idle()
