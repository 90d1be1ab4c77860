"""What a handler may do: read its input edge, write its output edges, start the next stage, move tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Generic, TypeVar

from omnistage.contracts import AnyWork, Failure, Payload, Work, encode, needed_version
from omnistage.errors import Cancelled, DeadlineExceeded, StageFailed, TensorError, TensorUnavailable
from omnistage.observability import Metrics, get_logger
from omnistage.pipelines import GATEWAY, Edge, Pipeline, pipeline
from omnistage.runtime.edges import EdgeReader, EdgeWriter
from omnistage.runtime.meta import Meta
from omnistage.runtime.neighbours import Neighbours
from omnistage.runtime.patience import patiently, with_room
from omnistage.runtime.tasks import together
from omnistage.runtime.telemetry import Telemetry, trace_headers
from omnistage.tensors import Array
from omnistage.tensors.plane import TensorPlane
from omnistage.transport import Bus, KeyValue

E = TypeVar("E")

_log = get_logger(__name__)

LEASE_GRACE_S = 30.0
"""A published block outlives its request's deadline by this much."""

REQUESTS_BUCKET = "requests"
"""Key-value bucket of tombstones: a request id in it is over, whatever its purged logs say."""

TOMBSTONE_TTL_S = 2 * 3600.0
"""Tombstones outlive the longest deadline and the logs' own age limit."""


class RequestContext(Generic[E]):
    """One request at one node.

    Attributes:
        engine: the engine that this node's work is for.
        meta: deadline, tenant, priority and trace context.
        resumed: whether an earlier holder has already written something.
    """

    def __init__(
        self,
        *,
        bus: Bus,
        plane: TensorPlane,
        engine: E,
        instance: str,
        work: Work,
        meta: Meta,
        input_idle_s: float,
        telemetry: Telemetry,
        neighbours: Neighbours,
    ) -> None:
        self.engine = engine
        self.meta = meta
        self.resumed = False
        self._bus = bus
        self._plane = plane
        self._instance = instance
        self._work = work
        self._graph: Pipeline = pipeline(work.pipeline)
        self._input_idle_s = input_idle_s
        self._telemetry = telemetry
        self._neighbours = neighbours
        self._writers: dict[str, EdgeWriter] = {}
        self._started: set[str] = set()

    @property
    def metrics(self) -> Metrics:
        return self._telemetry.metrics

    @property
    def engine_key(self) -> str:
        """Key of this node's engine; the `model` label of its metrics."""
        return self._work.route[self._work.node]

    @property
    def request_id(self) -> str:
        return self._work.request_id

    @property
    def lease_s(self) -> float:
        """Seconds that a block published now must live."""
        return max(0.0, self.meta.remaining_s) + LEASE_GRACE_S

    def has(self, node: str) -> bool:
        """Whether a node takes part in this request."""
        return node == GATEWAY or node in self._work.route

    def output(self, destination: str) -> EdgeWriter:
        """The edge from this node to another (opened before the handler is called)."""
        return self._writers[destination]

    async def input(self) -> EdgeReader:
        """The one edge that leads data into this node, listening already.

        Raises:
            StageFailed: the pipeline has no such edge for this node.
        """
        edges = self._graph.into(self._work.node)
        if len(edges) != 1:
            raise StageFailed(f"node {self._work.node} of pipeline {self._graph.name} has {len(edges)} input edges")
        edge = edges[0]
        reader = EdgeReader(
            self._bus,
            self._subject(edge),
            request_id=self.request_id,
            edge=edge.name,
            idle_s=self._input_idle_s,
            arrived=self._telemetry.hop,
            skipped=lambda: self._telemetry.skipped("feed"),
            carries=edge.carries,
        )
        await reader.open()
        return reader

    def onward(self, node: str) -> dict[str, Any]:
        """The fields that every work item for another node of this request begins with."""
        return {
            "request_id": self._work.request_id,
            "pipeline": self._work.pipeline,
            "node": node,
            "route": self._work.route,
        }

    async def start(self, work: AnyWork) -> None:
        """Publish the next stage's work item, once; to be called with the first chunk for it at the latest."""
        if work.node in self._started:
            return
        node = self._graph.node(work.node)
        subject = self._bus.subjects.work(node.service, work.route[work.node], work.request_id)
        meta = replace(self.meta, contract=max(self.meta.contract, needed_version(work)))
        headers = trace_headers(meta)
        await patiently(lambda: with_room(lambda: self._bus.publish_work(subject, encode(work), headers)))
        self._started.add(work.node)

    async def pack(self, array: Array, destination: str) -> Payload:
        """Bytes for a chunk to another node: inline when small, else published in the tensor plane.

        Waits for a tensor server that is away, unless meanwhile all readers are on this host.
        """
        reader = self._work.route.get(destination, GATEWAY)

        async def publish() -> Payload:
            same_host = self._neighbours.share_memory(reader)
            return await self._plane.pack(array, request_id=self.request_id, lease_s=self.lease_s, same_host=same_host)

        payload = await patiently(publish, TensorUnavailable)
        self._telemetry.payload(self._writers[destination].edge, payload)
        return payload

    async def unpack(self, payload: Payload, *, borrow: bool = False) -> Array:
        """A chunk's bytes: a private copy, or borrowed by the node that will release them (then read-only).

        Waits for a tensor server that is away: only the server knows whether the block is lost.

        Raises:
            TensorError: it is lost.
        """
        return await patiently(lambda: self._plane.unpack(payload, borrow=borrow), TensorUnavailable)

    async def release(self, payload: Payload) -> None:
        """Nobody needs a chunk's bytes any more."""
        try:
            await self._plane.release(payload)
        except TensorError as error:
            # The block goes with its request, or its lease.
            _log.warning("cannot release a block", request_id=self.request_id, code=error.code)

    # What follows is the worker's.

    async def enter(self, tombstones: KeyValue, redo: Mapping[str, int] | None = None, *, fresh: bool = False) -> None:
        """Take over every output edge.

        Args:
            tombstones: requests that are over.
            redo: edge name -> the data record from which on it is to be written again.
            fresh: the work was never claimed before, so its edges are likely to be empty.

        Raises:
            DeadlineExceeded: nobody waits any more.
            Cancelled: the request is over.
        """
        for edge in self._graph.out_of(self._work.node):
            if self.has(edge.destination):
                self._writers[edge.destination] = self._writer(edge)
        if self.meta.remaining_s <= 0:
            raise DeadlineExceeded("the request's deadline passed while it waited")
        if await patiently(lambda: tombstones.get(self.request_id)) is not None:
            raise Cancelled("the request is over")
        wanted = redo or {}
        opening = (partial(writer.open, wanted.get(writer.edge), fresh=fresh) for writer in self._writers.values())
        await together(*(patiently(call) for call in opening))
        self.resumed = any(writer.earlier for writer in self._writers.values())

    async def fail(self, failure: Failure, *, purged: bool = False) -> None:
        """Say that the request has failed, where it is read.

        Nobody reads an edge to a stage that was not started: in its place we speak on the edges beyond it, if the
        gateway has none of ours.

        Args:
            purged: the request's logs were emptied before.

        Raises:
            Fenced: another holder has taken over, or the request is gone.
            QueueFull: there is no room on the broker.
        """
        for destination, writer in self._writers.items():
            if destination == GATEWAY or destination in self._started:
                await writer.fail(failure, purged=purged)
        if GATEWAY not in self._writers:
            for edge in self._beyond():
                writer = self._writer(edge)
                await patiently(writer.open)
                await writer.fail(failure)

    def _beyond(self) -> list[Edge]:
        """The edges to the gateway that lie beyond stages that this holder has not started."""
        found, stages = [], [node for node in self._writers if node not in self._started]
        while stages:
            for edge in self._graph.out_of(stages.pop()):
                if edge.destination == GATEWAY:
                    found.append(edge)
                elif self.has(edge.destination):
                    stages.append(edge.destination)
        return found

    def _writer(self, edge: Edge) -> EdgeWriter:
        return EdgeWriter(
            self._bus,
            self._subject(edge),
            request_id=self.request_id,
            edge=edge.name,
            instance=self._instance,
            meta=self.meta,
        )

    async def step_back(self) -> None:
        """Give the output edges up for a while, in order; nobody else has the claim."""
        await together(*(writer.release() for writer in self._writers.values()))

    async def step_forward(self, past_the_crash: Callable[[], None]) -> None:
        """Take the output edges over again.

        Args:
            past_the_crash: called once a record is written that no holder before has written.
        """
        await together(*(patiently(writer.open) for writer in self._writers.values()))
        for writer in self._writers.values():
            writer.on_progress = past_the_crash

    @property
    def crashes(self) -> int:
        """How many holders of this node's work ended without a word before this one."""
        return max((writer.crashes for writer in self._writers.values()), default=0)

    @property
    def writers(self) -> tuple[EdgeWriter, ...]:
        return tuple(self._writers.values())

    def _subject(self, edge: Edge) -> str:
        source = self._graph.node(edge.source)
        build = self._bus.subjects.out if edge.destination == GATEWAY else self._bus.subjects.feed
        return build(source.service, self._work.route[edge.source], self.request_id, edge.name)
