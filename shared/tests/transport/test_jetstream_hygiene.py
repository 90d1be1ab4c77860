"""What the JetStream bus creates on the broker, and what it leaves there."""

from __future__ import annotations

import asyncio
import contextlib
import json
import urllib.request
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import StreamConfig

from omnistage.errors import BusUnavailable, ConfigError
from omnistage.testing.bus_conformance.steps import MODEL, STAGE, bodies, claimed, eventually, numbered, take, write
from omnistage.testing.servers import NatsServer, free_port, nats_server
from omnistage.transport import Bus, BusOptions, Topology, connect, topology
from omnistage.transport.jetstream import JetStreamBus
from omnistage.transport.jetstream.log import LIVE_LIMIT

pytestmark = pytest.mark.integration
SMALL = {"log_max_bytes": 32 << 20, "work_max_bytes": 8 << 20, "dead_max_bytes": 1 << 20, "bucket_max_bytes": 1 << 20}


@pytest.fixture
def namespace() -> str:
    return f"h{uuid.uuid4().hex[:10]}"


@pytest.fixture
async def bus(broker: NatsServer, namespace: str) -> AsyncIterator[Bus]:
    opened = await open_bus(broker, namespace)
    yield opened
    await opened.close()


async def open_bus(broker: NatsServer, namespace: str, **options: Any) -> Bus:
    return await connect(broker.url, namespace, name="hygiene", options=BusOptions(**(SMALL | options)))


def subscriptions(broker: NatsServer) -> dict[str, list[str]]:
    """Subjects that each connection listens to, by the connection's name."""
    with urllib.request.urlopen(f"{broker.monitor_url}/connz?subs=1") as answer:
        connections = json.load(answer)["connections"]
    return {c.get("name", ""): c.get("subscriptions_list", []) for c in connections}


async def test_many_services_ensure_at_once(broker: NatsServer, namespace: str) -> None:
    topology = Topology.of(namespace, [(STAGE, MODEL), ("codec", "c"), ("thinker", "t")])
    async with contextlib.AsyncExitStack() as stack:

        async def start(n: int) -> Bus:
            opened = await open_bus(broker, namespace)
            stack.push_async_callback(opened.close)
            await opened.ensure(topology)
            await opened.key_value("jobs", ttl_s=60)
            await opened.work_queue(STAGE, MODEL)
            return opened

        await asyncio.gather(*(start(n) for n in range(8)))
        client = await nats.connect(broker.url)
        stream = topology.subjects.stream("work")
        consumers = await client.jetstream().consumers_info(stream)
        assert sorted(consumer.name for consumer in consumers) == ["codec-c", "talker-voice-a", "thinker-t"]
        await client.close()


async def test_the_streams_are_configured_as_promised(broker: NatsServer, bus: Bus) -> None:
    await bus.ensure(Topology.of(bus.subjects.namespace, [(STAGE, MODEL)]))
    client = await nats.connect(broker.url)
    js = client.jetstream()
    work, feed, out, dead = [
        (await js.stream_info(bus.subjects.stream(kind))).config for kind in ("work", "feed", "out", "dead")
    ]
    consumer = (await js.consumer_info(bus.subjects.stream("work"), f"{STAGE}-{MODEL}")).config
    await client.close()
    assert (work.retention, work.discard, work.max_msgs_per_subject) == ("workqueue", "new", 1)
    assert work.discard_new_per_subject
    assert {config.storage for config in (work, feed, out, dead)} == {"file"}
    for config in (feed, out):
        assert (config.discard, config.max_age, config.allow_direct) == ("new", 7200, True)
        assert config.republish is not None
        assert config.republish.dest is not None
        assert config.republish.dest.endswith("-live.>")
    assert (dead.discard, dead.max_age) == ("old", 7 * 24 * 3600)
    assert (consumer.ack_policy, consumer.ack_wait, consumer.max_deliver) == ("explicit", 1.5, -1)
    assert consumer.filter_subject == bus.subjects.work_of(STAGE, MODEL)


async def test_a_changed_setting_is_reconciled(broker: NatsServer, namespace: str, bus: Bus) -> None:
    await bus.ensure(Topology.of(namespace, [(STAGE, MODEL)]))
    newer = await open_bus(broker, namespace, work_max_msgs=7, ack_wait_s=3.0)
    await newer.ensure(Topology.of(namespace, [(STAGE, MODEL)]))
    client = await nats.connect(broker.url)
    js = client.jetstream()
    assert (await js.stream_info(bus.subjects.stream("work"))).config.max_msgs == 7
    assert (await js.consumer_info(bus.subjects.stream("work"), f"{STAGE}-{MODEL}")).config.ack_wait == 3.0
    await client.close()
    await newer.close()


async def test_a_higher_version_is_left_alone(broker: NatsServer, namespace: str) -> None:
    client = await nats.connect(broker.url)
    js = client.jetstream()
    subjects = Topology.of(namespace, []).subjects
    stream = subjects.stream("dead")
    captured = [subjects.everything("dead")]
    await js.add_stream(StreamConfig(stream, subjects=captured, max_msgs=5, metadata={"omnistage-topology": "99"}))
    opened = await open_bus(broker, namespace)
    assert (await js.stream_info(stream)).config.max_msgs == 5
    await opened.close()
    await client.close()


async def test_an_older_process_changes_nothing_of_what_a_later_version_has_set_up(
    broker: NatsServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Topology.of(namespace, [(STAGE, MODEL)])
    monkeypatch.setattr(topology, "VERSION", topology.VERSION + 1)
    later = await open_bus(
        broker, namespace, work_max_msgs=70, ack_wait_s=3.0, log_max_bytes=48 << 20, bucket_max_bytes=3 << 20
    )
    await set_up(later, served)
    client = await nats.connect(broker.url)
    js = client.jetstream()
    captured = [served.subjects.everything("work"), f"{namespace}.v1.work-of-later.>"]
    config = (await js.stream_info(served.subjects.stream("work"))).config
    config.subjects = captured
    await js.update_stream(config)
    before = await configurations(client, namespace)
    assert len(before) == 7, "four streams, a consumer, a bucket and an object store"

    monkeypatch.setattr(topology, "VERSION", topology.VERSION - 1)
    older = await open_bus(broker, namespace)
    await set_up(older, served)
    assert await configurations(client, namespace) == before
    await older.publish_work(older.subjects.work(STAGE, MODEL, "r1"), b"x", {})
    claim = await claimed(await later.work_queue(STAGE, MODEL))
    assert claim.message.body == b"x", "both work on what is there"
    await claim.ack()
    await later.close()
    await older.close()
    await client.close()


async def test_a_later_version_changes_what_an_older_one_has_set_up(
    broker: NatsServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Topology.of(namespace, [(STAGE, MODEL)])
    older = await open_bus(broker, namespace)
    await set_up(older, served)
    monkeypatch.setattr(topology, "VERSION", topology.VERSION + 1)
    later = await open_bus(broker, namespace)
    await set_up(later, served)
    client = await nats.connect(broker.url)
    found = await configurations(client, namespace)
    assert {config["metadata"]["omnistage-topology"] for config in found.values()} == {str(topology.VERSION)}
    await later.close()
    await older.close()
    await client.close()


async def set_up(bus: Bus, served: Topology) -> None:
    """Everything that a process needs on the broker."""
    await bus.ensure(served)
    await bus.key_value("jobs", ttl_s=60)
    await bus.object_store("voices")


async def configurations(client: Client, namespace: str) -> dict[str, dict[str, Any]]:
    """Of every stream and consumer of a namespace, as the broker has them."""
    js = client.jetstream()
    found: dict[str, dict[str, Any]] = {}
    for info in await js.streams_info():
        name = info.config.name or ""
        if namespace in name.lower():
            found[name] = info.config.as_dict()
            found |= {f"{name}/{one.name}": one.config.as_dict() for one in await js.consumers_info(name)}
    return found


async def test_somebody_elses_stream_is_not_touched(broker: NatsServer, namespace: str) -> None:
    client = await nats.connect(broker.url)
    js = client.jetstream()
    stream = Topology.of(namespace, []).subjects.stream("work")
    await js.add_stream(StreamConfig(stream, subjects=[f"{namespace}-other.>"]))
    with pytest.raises(ConfigError, match="somebody else"):
        await open_bus(broker, namespace)
    assert (await js.stream_info(stream)).config.subjects == [f"{namespace}-other.>"]
    await js.delete_stream(stream)
    await client.close()


async def test_a_deleted_consumer_is_made_again(broker: NatsServer, bus: Bus) -> None:
    queue = await bus.work_queue(STAGE, MODEL)
    client = await nats.connect(broker.url)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(claimed(queue))
        await asyncio.sleep(0.1)
        await client.jetstream().delete_consumer(bus.subjects.stream("work"), f"{STAGE}-{MODEL}")
        await bus.publish_work(bus.subjects.work(STAGE, MODEL, "r1"), b"x", {})
    assert waiting.result().message.body == b"x"
    await client.close()


async def consumers_of(broker: NatsServer, namespace: str) -> list[str]:
    """Names of all consumers on all streams of a namespace, buckets included."""
    client = await nats.connect(broker.url)
    try:
        js = client.jetstream()
        streams = [info.config.name or "" for info in await js.streams_info()]
        mine = [name for name in streams if namespace in name.lower()]
        return [consumer.name for name in mine for consumer in await js.consumers_info(name)]
    finally:
        await client.close()


async def test_consumers_of_what_is_no_longer_served_are_removed(broker: NatsServer, namespace: str, bus: Bus) -> None:
    served = Topology.of(namespace, [(STAGE, MODEL)])
    await bus.ensure(Topology.of(namespace, [(STAGE, MODEL), (STAGE, "old"), ("thinker", MODEL)]))
    await bus.publish_work(bus.subjects.work(STAGE, "old", "r1"), b"waits", {})
    assert sorted(await bus.prune(served)) == [f"{STAGE}-old", f"thinker-{MODEL}"]
    assert await consumers_of(broker, namespace) == [f"{STAGE}-{MODEL}"]
    assert await bus.prune(served) == []
    await bus.ensure(Topology.of(namespace, [(STAGE, "old")]))
    assert (await claimed(await bus.work_queue(STAGE, "old"))).message.body == b"waits"


async def test_following_leaves_no_consumer_and_no_subscription(broker: NatsServer, namespace: str) -> None:
    name = f"follower-{namespace}"
    async with contextlib.AsyncExitStack() as stack:
        bus = await connect(broker.url, namespace, name=name, options=BusOptions(**SMALL))
        stack.push_async_callback(bus.close)
        base = sorted(subscriptions(broker)[name])
        logs = []
        for n in range(100):
            subject = bus.subjects.feed(STAGE, MODEL, f"r{n}", "talker-codec")
            await write(bus, subject, [b"0"])
            logs.append(await bus.follow(subject))
            await take(logs[-1], 1)
        objects = await bus.object_store("voices")
        await objects.put("v", b"x" * 300_000)
        await objects.get("v")
        await (await bus.key_value("jobs")).keys()
        listener = await bus.subscribe(bus.subjects.ctl_requests(), lambda message: asyncio.sleep(0))
        queue = await bus.work_queue(STAGE, MODEL)
        assert await queue.pending() == 0
        assert len(subscriptions(broker)[name]) == len(base) + 102
        assert await consumers_of(broker, namespace) == [f"{STAGE}-{MODEL}"]
        for log in logs:
            await log.close()
        await listener.close()
        await queue.close()

        async def as_before() -> bool:
            return sorted(subscriptions(broker)[name]) == base

        await eventually(as_before)

    async def gone() -> bool:
        return name not in subscriptions(broker)

    await eventually(gone)


async def test_a_slow_reader_drops_live_records_and_reads_them_later(bus: Bus) -> None:
    subject = bus.subjects.feed(STAGE, MODEL, "r1", "talker-codec")
    log = await bus.follow(subject)
    await write(bus, subject, numbered(LIVE_LIMIT + 500))
    assert bodies(await take(log, LIVE_LIMIT + 500)) == numbered(LIVE_LIMIT + 500)
    assert bus.stats.gaps_filled >= 1


async def test_claims_of_a_foreign_pull_consumer_are_possible(broker: NatsServer, bus: Bus) -> None:
    """The durable consumer is plain JetStream: a tool that knows nothing of us can take an item."""
    await bus.ensure(Topology.of(bus.subjects.namespace, [(STAGE, MODEL)]))
    await bus.publish_work(bus.subjects.work(STAGE, MODEL, "r1"), b"x", {})
    client = await nats.connect(broker.url)
    subscription = await client.jetstream().pull_subscribe_bind(
        consumer=f"{STAGE}-{MODEL}", stream=bus.subjects.stream("work")
    )
    (raw,) = await subscription.fetch(1)
    await raw.nak()
    await subscription.unsubscribe()
    await client.close()
    assert (await claimed(await bus.work_queue(STAGE, MODEL))).deliveries == 2


async def test_tools_can_read_buckets_and_objects(broker: NatsServer, bus: Bus) -> None:
    await (await bus.key_value("jobs")).put("x", b"1")
    await (await bus.object_store("voices")).put("v", b"y" * 200_000)
    client = await nats.connect(broker.url)
    js = client.jetstream()
    entry = await (await js.key_value(bus.subjects.bucket("jobs"))).get("x")
    thing = await (await js.object_store(bus.subjects.bucket("voices"))).get("v")
    await client.close()
    assert entry.value == b"1"
    assert thing.data == b"y" * 200_000


async def test_an_object_of_many_chunks(bus: Bus) -> None:
    data = bytes(range(256)) * 80_000
    store = await bus.object_store("voices")
    await store.put("video", data)
    assert await store.get("video") == data


async def test_a_client_that_the_broker_throws_out_says_so(broker: NatsServer, bus: Bus) -> None:
    """A protocol error ends a client for good; then nothing may wait for ever."""
    assert isinstance(bus, JetStreamBus)
    queue = await bus.work_queue(STAGE, MODEL)
    log = await bus.follow(bus.subjects.feed(STAGE, MODEL, "r1", "e"))
    transport = bus._connection._client._transport
    assert transport is not None

    async def claim_in_vain() -> None:
        with pytest.raises(BusUnavailable):
            await queue.claim()

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(claim_in_vain())
        await asyncio.sleep(0.05)
        transport.write(b"NONSENSE\r\n")
    assert not bus.connected
    assert [record async for record in log] == []
    with pytest.raises(BusUnavailable):
        await queue.claim()
    with pytest.raises(BusUnavailable):
        await bus.read(bus.subjects.feed(STAGE, MODEL, "r1", "e"))


async def test_credentials() -> None:
    async with nats_server(user="omni", password="secret") as guarded:
        bus = await connect(guarded.url, "t", name="x", user="omni", password="secret")
        assert bus.connected
        await bus.close()
        with pytest.raises(ConfigError):
            await connect(guarded.url, "t", name="x", user="omni", password="wrong")
        with pytest.raises(ConfigError):
            await connect(guarded.url, "t", name="x")


async def test_a_broker_with_too_little_storage_is_said_to_be(tmp_path: Path) -> None:
    server = NatsServer(tmp_path, max_file_store=100 << 20)
    server.start()
    try:
        with pytest.raises(ConfigError, match=r"no room for stream OMNI_\S+ .*max_file_store"):
            await connect(server.url, "omni", name="hygiene")
    finally:
        server.kill()


async def test_no_broker() -> None:
    with pytest.raises(BusUnavailable):
        await connect(f"nats://127.0.0.1:{free_port()}", "t", name="x", options=BusOptions(timeout_s=0.4))
    with pytest.raises(ConfigError):
        await connect("http://127.0.0.1:1", "t", name="x")
    with pytest.raises(ConfigError):
        await connect("memory://", "Not A Token", name="x")
