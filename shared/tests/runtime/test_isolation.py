"""Requests that instances died of: alone first, then no more. Real bus rules, in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from omnistage.contracts import End, Failed, Opened, Released, TextDelta
from omnistage.observability import names
from omnistage.runtime import worker
from omnistage.runtime.context import RequestContext
from omnistage.testing.text_stage import text_stage


async def test_a_request_that_ended_two_instances_runs_alone() -> None:
    together: list[int] = []
    running, go = set[str](), asyncio.Event()

    async def handler(context: RequestContext[Any], _work: Any) -> None:
        running.add(context.request_id)
        try:
            if context.request_id == "suspect":
                together.append(len(running))
                go.set()
                await asyncio.sleep(0.05)
                together.append(len(running))
            else:
                await asyncio.sleep(0.05)
        finally:
            running.discard(context.request_id)
        await context.output("gateway").finish()

    async with text_stage(handler) as one:
        await one.crash("suspect", 1)
        await one.crash("suspect", 2)
        await one.submit("good1")
        await one.submit("suspect")
        await one.submit("good2")
        for request_id in ("suspect", "good1", "good2"):
            assert isinstance((await one.ended(request_id))[-1], End)
        assert together == [1, 1]


async def test_a_request_that_ended_three_instances_is_poison() -> None:
    called = False

    async def handler(_context: RequestContext[Any], _work: Any) -> None:
        nonlocal called
        called = True

    async with text_stage(handler) as one:
        for epoch in (1, 2, 3):
            await one.crash("r", epoch)
        await one.submit("r")
        last = (await one.ended("r"))[-1]
        assert isinstance(last, Failed)
        assert (last.failure.code, last.failure.status, last.failure.retryable) == ("poisoned", 500, False)
        assert not called
        assert one.metrics.value(names.POISONED, model="m") == 1


async def test_others_are_handed_over_at_once_and_finish_afterwards() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def handler(context: RequestContext[Any], _work: Any) -> None:
        edge = context.output("gateway")
        if context.request_id == "good" and not edge.earlier:
            await edge.send(TextDelta, text="a")
            begun.set()
            await asyncio.Event().wait()
        if context.request_id == "suspect":
            await go_on.wait()
        await edge.send(TextDelta, text="b")
        await edge.finish()

    async with text_stage(handler) as one:
        await one.crash("suspect", 1)
        await one.crash("suspect", 2)
        await one.submit("good")
        await begun.wait()
        await one.submit("suspect")
        async with asyncio.timeout(5):
            while not any(isinstance(record, Released) for record in await one.records("good")):
                await asyncio.sleep(0.005)
        go_on.set()
        assert isinstance((await one.ended("suspect"))[-1], End)
        kinds = [type(record) for record in await one.ended("good")]
        assert kinds == [Opened, TextDelta, Released, Opened, TextDelta, End]


async def test_a_suspect_that_waits_holds_nobody_up_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "ALONE_S", 0.02)
    waits, go_on = asyncio.Event(), asyncio.Event()

    async def handler(context: RequestContext[Any], _work: Any) -> None:
        if context.request_id == "suspect":
            waits.set()
            await go_on.wait()
        await context.output("gateway").finish()

    async with text_stage(handler) as one:
        await one.crash("suspect", 1)
        await one.crash("suspect", 2)
        await one.submit("suspect")
        await waits.wait()
        await one.submit("good")
        assert isinstance((await one.ended_beside("good"))[-1], End)
        assert one.hosted.running.keys() == {"suspect"}
        go_on.set()
        assert isinstance((await one.ended("suspect"))[-1], End)


async def test_instances_that_died_of_something_else_are_excused_by_progress() -> None:
    alone: list[int] = []

    async def handler(context: RequestContext[Any], _work: Any) -> None:
        alone.append(context.crashes)
        await context.output("gateway").finish()

    async with text_stage(handler) as one:
        for epoch in (1, 2, 3):
            await one.crash("r", epoch)
            await one.write(
                "r", TextDelta(request_id="r", edge="thinker-gateway", epoch=epoch, seq=epoch - 1, text="x")
            )
        await one.submit("r")
        assert isinstance((await one.ended("r"))[-1], End)
        assert alone == [1]
