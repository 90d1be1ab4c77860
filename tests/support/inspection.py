"""Looking directly at what lies on the broker and in the arena."""

from __future__ import annotations

import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import nats
from nats.js import JetStreamContext
from prometheus_client.parser import text_string_to_metric_families

from omnistage.launcher.state import State
from omnistage.subjects import FEED, OUT, WORK, Subjects


@asynccontextmanager
async def jetstream(state: State) -> AsyncIterator[JetStreamContext]:
    """The broker of a running system, without our own layer in between."""
    client = await nats.connect(state.bus_url, user=state.bus_user, password=state.bus_password)
    try:
        yield client.jetstream()
    finally:
        await client.close()


async def entries(stream: JetStreamContext, namespace: str) -> dict[str, int]:
    """Messages of the classes work, feed and out."""
    subjects = Subjects(namespace)
    return {kind: (await stream.stream_info(subjects.stream(kind))).state.messages for kind in (WORK, FEED, OUT)}


async def consumers(stream: JetStreamContext, namespace: str) -> dict[str, int]:
    """Consumers of each of these streams."""
    subjects = Subjects(namespace)
    return {kind: (await stream.stream_info(subjects.stream(kind))).state.consumer_count for kind in (WORK, FEED, OUT)}


def metrics_page(port: int, host: str = "127.0.0.1") -> str:
    """A process's metrics in Prometheus' text format."""
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as answer:
        return str(answer.read().decode())


def metric(port: int, name: str, host: str = "127.0.0.1", **labels: str) -> float:
    """Sum of a metric over all samples that have these labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(metrics_page(port, host))
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )
