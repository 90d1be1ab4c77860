"""What every work queue must do."""

from __future__ import annotations

import asyncio

import pytest

from omnistage.errors import BusUnavailable, ConfigError, QueueFull
from omnistage.testing.bus_conformance.steps import (
    MODEL,
    PATIENCE_S,
    STAGE,
    Conformance,
    OpenBus,
    Pair,
    claimed,
    eventually,
)


class WorkConformance(Conformance):
    """What every work queue must do."""

    async def test_a_claim_shows_what_was_published(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        subject = a.subjects.work(STAGE, MODEL, "r1")
        await a.publish_work(subject, b"\x00\xff", {"traceparent": "00-ab", "note": "é"})
        claim = await claimed(await b.work_queue(STAGE, MODEL))
        assert claim.message.subject == subject
        assert claim.message.body == b"\x00\xff"
        assert claim.message.headers == {"traceparent": "00-ab", "note": "é"}
        assert claim.deliveries == 1
        assert (a.stats.published, b.stats.redelivered) == (1, 0)

    async def test_each_item_is_claimed_once_among_two_instances(self, bus_pair: Pair) -> None:
        queues = [await bus.work_queue(STAGE, MODEL) for bus in bus_pair]
        seen: list[tuple[int, str]] = []

        async def serve(instance: int) -> None:
            while len(seen) < 40:
                try:
                    claim = await queues[instance].claim()
                except BusUnavailable:
                    break
                seen.append((instance, claim.message.subject))
                await claim.ack()
            for queue in queues:
                await queue.close()

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            group.create_task(serve(0))
            group.create_task(serve(1))
            for n in range(40):
                await bus_pair[0].publish_work(bus_pair[0].subjects.work(STAGE, MODEL, f"r{n}"), b"", {})
        assert len(seen) == 40
        assert len({subject for _, subject in seen}) == 40
        assert {instance for instance, _ in seen} == {0, 1}

    async def test_models_have_queues_of_their_own(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        await a.publish_work(a.subjects.work(STAGE, "other", "r1"), b"other", {})
        await a.publish_work(a.subjects.work(STAGE, MODEL, "r1"), b"mine", {})
        assert (await claimed(await b.work_queue(STAGE, MODEL))).message.body == b"mine"
        assert (await claimed(await b.work_queue(STAGE, "other"))).message.body == b"other"

    async def test_an_item_that_nobody_acks_is_delivered_again(self, open_bus: OpenBus, namespace: str) -> None:
        a, b = await open_bus(namespace, ack_wait_s=0.5), await open_bus(namespace, ack_wait_s=0.5)
        await a.publish_work(a.subjects.work(STAGE, MODEL, "r1"), b"x", {})
        first = await claimed(await a.work_queue(STAGE, MODEL))
        second = await claimed(await b.work_queue(STAGE, MODEL))
        assert second.message == first.message
        assert second.deliveries == 2
        assert b.stats.redelivered == 1

    async def test_a_late_ack_removes_the_item_from_its_new_holder(self, open_bus: OpenBus, namespace: str) -> None:
        """Why the ack is no fence: the broker does not ask who sends it."""
        a, b = await open_bus(namespace, ack_wait_s=0.5), await open_bus(namespace, ack_wait_s=0.5)
        subject = a.subjects.work(STAGE, MODEL, "r1")
        await a.publish_work(subject, b"x", {})
        late = await claimed(await a.work_queue(STAGE, MODEL))
        queue = await b.work_queue(STAGE, MODEL)
        await claimed(queue)
        await late.ack()
        await a.publish_work(a.subjects.work(STAGE, MODEL, "r2"), b"y", {})
        assert (await claimed(queue)).message.body == b"y"

    async def test_in_progress_keeps_an_item(self, open_bus: OpenBus, namespace: str) -> None:
        a, b = await open_bus(namespace, ack_wait_s=1.5), await open_bus(namespace, ack_wait_s=1.5)
        await a.publish_work(a.subjects.work(STAGE, MODEL, "r1"), b"x", {})
        held = await claimed(await a.work_queue(STAGE, MODEL))
        queue = await b.work_queue(STAGE, MODEL)
        async with asyncio.TaskGroup() as group:
            other = group.create_task(claimed(queue))
            for _ in range(15):
                await held.in_progress()
                await asyncio.sleep(0.2)
                assert not other.done()
        assert other.result().deliveries == 2

    async def test_nak_gives_an_item_to_another(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        await a.publish_work(a.subjects.work(STAGE, MODEL, "r1"), b"x", {})
        await (await claimed(await a.work_queue(STAGE, MODEL))).nak()
        assert (await claimed(await b.work_queue(STAGE, MODEL))).deliveries == 2

    async def test_nak_with_a_delay_waits(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        queue = await b.work_queue(STAGE, MODEL)
        await a.publish_work(a.subjects.work(STAGE, MODEL, "r1"), b"x", {})
        loop = asyncio.get_running_loop()
        claim = await claimed(queue)
        start = loop.time()
        await claim.nak(delay_s=0.4)
        await claimed(queue)
        assert loop.time() - start >= 0.39

    async def test_another_process_gives_an_item_back(self, open_bus: OpenBus, namespace: str) -> None:
        a, b = await open_bus(namespace, ack_wait_s=120), await open_bus(namespace, ack_wait_s=120)
        await a.publish_work(a.subjects.work(STAGE, MODEL, "r1"), b"x", {})
        held = await claimed(await a.work_queue(STAGE, MODEL))
        await b.give_back(held.token)
        assert (await claimed(await b.work_queue(STAGE, MODEL))).deliveries == 2
        with pytest.raises(ConfigError):
            await b.give_back("no-token")

    async def test_a_request_is_queued_once_until_it_is_done(self, bus_pair: Pair) -> None:
        a, b = bus_pair
        queue = await b.work_queue(STAGE, MODEL)
        subject = a.subjects.work(STAGE, MODEL, "r1")
        await a.publish_work(subject, b"first", {})
        await a.publish_work(subject, b"again", {})
        claim = await claimed(queue)
        await b.publish_work(subject, b"while held", {})
        assert a.stats.published == 1
        assert b.stats.published == 0
        await claim.ack()
        await a.publish_work(a.subjects.work(STAGE, MODEL, "r2"), b"next", {})
        assert (claim.message.body, (await claimed(queue)).message.body) == (b"first", b"next")

        async def queued_anew() -> bool:
            await a.publish_work(subject, b"new", {})
            return a.stats.published == 3

        await eventually(queued_anew)
        assert (await claimed(queue)).message.body == b"new"

    async def test_a_full_queue_refuses_until_there_is_room(self, open_bus: OpenBus, namespace: str) -> None:
        bus = await open_bus(namespace, work_max_msgs=3)
        for n in range(3):
            await bus.publish_work(bus.subjects.work(STAGE, MODEL, f"r{n}"), b"", {})
        with pytest.raises(QueueFull) as refusal:
            await bus.publish_work(bus.subjects.work(STAGE, MODEL, "r3"), b"", {})
        assert refusal.value.retryable
        queue = await bus.work_queue(STAGE, MODEL)
        assert await queue.pending() == 3
        await (await claimed(queue)).ack()

        async def accepted() -> bool:
            try:
                await bus.publish_work(bus.subjects.work(STAGE, MODEL, "r3"), b"", {})
            except QueueFull:
                return False
            return True

        await eventually(accepted)
        assert await queue.pending() == 3

    async def test_cancelled_claims_lose_nothing(self, open_bus: OpenBus, namespace: str) -> None:
        """With an ack_wait far beyond the test, only what a cancelled claim gave back comes again."""
        a, b = await open_bus(namespace, ack_wait_s=600), await open_bus(namespace, ack_wait_s=600)
        queue = await b.work_queue(STAGE, MODEL)
        seen: set[str] = set()
        for n in range(120):
            async with asyncio.TaskGroup() as group:
                task = group.create_task(queue.claim())
                await asyncio.sleep(0)
                publishing = group.create_task(a.publish_work(a.subjects.work(STAGE, MODEL, f"r{n}"), b"", {}))
                await asyncio.sleep((n % 12) * 0.0002)
                task.cancel()
                await asyncio.wait({task, publishing})
            if not task.cancelled():
                seen.add(task.result().message.subject)
                await task.result().ack()
        while len(seen) < 120:
            claim = await claimed(queue)
            assert claim.message.subject not in seen
            seen.add(claim.message.subject)
            await claim.ack()

    async def test_closing_a_queue_ends_its_claims(self, bus_pair: Pair) -> None:
        queue = await bus_pair[0].work_queue(STAGE, MODEL)

        async def claim_in_vain() -> None:
            with pytest.raises(BusUnavailable):
                await queue.claim()

        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            group.create_task(claim_in_vain())
            await asyncio.sleep(0.05)
            await queue.close()
        await queue.close()
        await claim_in_vain()
