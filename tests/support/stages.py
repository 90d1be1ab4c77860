"""Stages inside the test's process: the real handlers and engines, on any bus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from omnistage.config import ModelsFile
from omnistage.contracts import AnyWork, AudioDelta, End, Failed, Opened, Record, TextDelta, decode_record, encode
from omnistage.observability import Metrics, setup_tracing
from omnistage.pipelines import pipeline
from omnistage.runtime.context import REQUESTS_BUCKET
from omnistage.runtime.control import ControlActions, ControlListener
from omnistage.runtime.engines import HostedEngine, Loaded
from omnistage.runtime.meta import Meta
from omnistage.runtime.neighbours import Neighbours
from omnistage.runtime.service import Service
from omnistage.runtime.telemetry import Telemetry
from omnistage.runtime.worker import Worker
from omnistage.tensors.plane import TensorPlane
from omnistage.transport import Bus

PATIENCE_S = 280.0
"""Generous: the machine that runs the tests may be busy with other things."""


@dataclass(frozen=True)
class Stage:
    """One instance of a stage."""

    worker: Worker
    metrics: Metrics
    hosted: tuple[HostedEngine, ...] = ()


class Engines:
    """Engines, each loaded once and shared by all instances of a test session."""

    def __init__(self, models: ModelsFile) -> None:
        self.models = models
        self._loaded: dict[str, Loaded] = {}

    async def load(self, service: Service, key: str) -> Loaded:
        if key not in self._loaded:
            loaded = await service.load(key, self.models.engines[key], Metrics(service.name, "shared"))
            await loaded.engine.warm()
            self._loaded[key] = loaded
        return self._loaded[key]

    async def close(self) -> None:
        for loaded in self._loaded.values():
            await loaded.engine.close()


@asynccontextmanager
async def stage(
    service: Service, engines: Engines, bus: Bus, plane: TensorPlane, instance: str
) -> AsyncIterator[Stage]:
    """An instance of a service that answers for all of its engines; handed over on leaving."""
    metrics = Metrics(service.name, instance)
    worker = Worker(
        bus=bus,
        plane=plane,
        tombstones=await bus.key_value(REQUESTS_BUCKET),
        service=service.name,
        instance=instance,
        handlers=service.handlers,
        telemetry=Telemetry(metrics, setup_tracing(service.name, instance, "0", None)),
        neighbours=Neighbours(bus, ""),
    )
    control = ControlListener(bus, instance, _actions(worker, plane))
    await control.start()
    hosts: list[HostedEngine] = []
    for key, spec in engines.models.of_service(service.name).items():
        hosted = HostedEngine(key, spec)
        hosts.append(hosted)
        hosted.loaded = await engines.load(service, key)
        await worker.serve(hosted)
    try:
        yield Stage(worker, metrics, tuple(hosts))
    finally:
        await worker.drain(0)
        await control.close()


def _actions(worker: Worker, plane: TensorPlane) -> ControlActions:
    async def over(request_id: str) -> None:
        await worker.forget(request_id)
        await plane.forget(request_id)

    async def nothing() -> None:
        return

    return ControlActions(cancel=over, forget=over, redo=worker.redo, ping=nothing, drain=nothing)


@dataclass
class Answer:
    """All that came out of a request."""

    text: str
    samples: NDArray[np.int16]
    epochs: dict[str, int]


async def answer(bus: Bus, plane: TensorPlane, work: AnyWork, *, on_record: Any = None) -> Answer:
    """Send a work item into its pipeline and read every out edge to its end."""
    graph = pipeline(work.pipeline)
    node = graph.node(work.node)
    sounds: dict[int, NDArray[np.int16]] = {}

    async def read(source: str, edge: str, subject: str) -> list[Record]:
        records: list[Record] = []
        async for message in await bus.follow(subject):
            record = decode_record(message.body)
            records.append(record)
            if isinstance(record, AudioDelta):
                sounds[record.offset] = await plane.unpack(record.payload)
            if on_record is not None:
                await on_record(record)
            if isinstance(record, Failed):
                raise AssertionError(f"{edge} failed: {record.failure}")
            if isinstance(record, End):
                return records
        raise AssertionError(f"{edge} has no end")

    reads = [
        read(
            edge.source,
            edge.name,
            bus.subjects.out(graph.node(edge.source).service, work.route[edge.source], work.request_id, edge.name),
        )
        for edge in graph.outputs()
    ]
    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        tasks = [group.create_task(one) for one in reads]
        await asyncio.sleep(0)
        subject = bus.subjects.work(node.service, work.route[work.node], work.request_id)
        await bus.publish_work(subject, encode(work), Meta(deadline=time.time() + PATIENCE_S).to_headers())
    return _joined([record for task in tasks for record in task.result()], sounds)


def _joined(records: list[Record], sounds: Mapping[int, NDArray[np.int16]]) -> Answer:
    text, sound, position = "", [], 0
    epochs: dict[str, int] = {}
    for record in records:
        if isinstance(record, Opened):
            epochs[record.edge] = record.epoch
        elif isinstance(record, TextDelta):
            text += record.text
        elif isinstance(record, AudioDelta):
            assert record.offset == position
            sound.append(sounds[position])
            position += len(sounds[position])
    return Answer(text, np.concatenate(sound) if sound else np.zeros(0, np.int16), epochs)


def route_of(models: ModelsFile, model: str) -> Mapping[str, str]:
    return models.models[model].nodes
