"""Pipelines as frozen values: nodes joined by typed edges. Construction refuses a graph that cannot work."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from omnistage.contracts import FIRST_VERSION, Record, Work
from omnistage.errors import ConfigError

Service = Literal["gateway", "thinker", "talker", "codec", "dit"]

GATEWAY = "gateway"
"""Name of the node where every pipeline begins and ends."""


@dataclass(frozen=True)
class Node:
    """A service at its place in a pipeline; one service may stand in a pipeline twice, under two names.

    Attributes:
        name: unique in the pipeline, e.g. "talker".
        service: the service that answers for it.
        work: the message that starts it; None for the gateway.
    """

    name: str
    service: Service
    work: type[Work] | None = None


@dataclass(frozen=True)
class Edge:
    """What one node sends another while a request runs.

    Attributes:
        source, destination: node names.
        carries: the record types of the data on it.
        starts: whether the source also publishes the destination's work item.
    """

    source: str
    destination: str
    carries: tuple[type[Record], ...]
    starts: bool = False

    @property
    def name(self) -> str:
        """Token of the edge in subjects and records."""
        return f"{self.source}-{self.destination}"


@dataclass(frozen=True)
class Pipeline:
    """A way that requests go.

    Attributes:
        version: counts changes of the graph itself.
        contract: contract version that all its stages need, for a pipeline that a later version brought.
    """

    name: str
    version: int
    about: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    contract: int = FIRST_VERSION
    _by_name: dict[str, Node] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {node.name: node for node in self.nodes})
        self._check_names()
        self._check_starts()
        self._check_outputs()

    def node(self, name: str) -> Node:
        """The node of that name. Raises ConfigError if the pipeline has none."""
        try:
            return self._by_name[name]
        except KeyError:
            raise ConfigError(f"pipeline {self.name!r} has no node {name!r}") from None

    def into(self, node: str) -> tuple[Edge, ...]:
        """Edges that carry data into a node (the gateway's work items are no edges)."""
        return tuple(edge for edge in self.edges if edge.destination == node and edge.source != GATEWAY)

    def out_of(self, node: str) -> tuple[Edge, ...]:
        return tuple(edge for edge in self.edges if edge.source == node)

    def stages(self) -> tuple[Node, ...]:
        """All nodes but the gateway."""
        return tuple(node for node in self.nodes if node.name != GATEWAY)

    def entry(self) -> Edge:
        """The edge by which a request leaves the gateway."""
        return next(edge for edge in self.edges if edge.source == GATEWAY)

    def outputs(self) -> tuple[Edge, ...]:
        """Edges that end at the gateway."""
        return self.into(GATEWAY)

    def _check_names(self) -> None:
        if len(self._by_name) != len(self.nodes):
            raise ConfigError(f"pipeline {self.name!r}: two nodes have the same name")
        if GATEWAY not in self._by_name:
            raise ConfigError(f"pipeline {self.name!r} has no gateway node")
        names = [edge.name for edge in self.edges]
        if len(set(names)) != len(names):
            raise ConfigError(f"pipeline {self.name!r}: two edges join the same nodes")
        for edge in self.edges:
            self.node(edge.source)
            self.node(edge.destination)
            if not edge.carries and edge.source != GATEWAY:
                raise ConfigError(f"pipeline {self.name!r}: edge {edge.name} carries nothing")

    def _check_starts(self) -> None:
        """Every stage is started by exactly one edge, and can be reached from the gateway by such edges."""
        reached, frontier = {GATEWAY}, [GATEWAY]
        while frontier:
            here = frontier.pop()
            for edge in self.edges:
                if edge.source == here and edge.starts and edge.destination not in reached:
                    reached.add(edge.destination)
                    frontier.append(edge.destination)
        if sum(edge.source == GATEWAY for edge in self.edges) != 1:
            raise ConfigError(f"pipeline {self.name!r} needs exactly one edge out of the gateway")
        for node in self.stages():
            if node.work is None:
                raise ConfigError(f"pipeline {self.name!r}: node {node.name!r} names no work message")
            if node.name not in reached:
                raise ConfigError(f"pipeline {self.name!r}: node {node.name!r} cannot be reached from the gateway")
            starters = [edge for edge in self.edges if edge.destination == node.name and edge.starts]
            if len(starters) != 1:
                raise ConfigError(f"pipeline {self.name!r}: node {node.name!r} is started by {len(starters)} edges")

    def _check_outputs(self) -> None:
        """Nothing is produced that nobody takes: from every stage a way leads to the gateway."""
        if not self.outputs():
            raise ConfigError(f"pipeline {self.name!r} sends nothing to the gateway")
        useful, grew = {GATEWAY}, True
        while grew:
            grew = False
            for edge in self.edges:
                if edge.destination in useful and edge.source not in useful:
                    useful.add(edge.source)
                    grew = True
        for node in self.stages():
            if node.name not in useful:
                raise ConfigError(f"pipeline {self.name!r}: nobody takes the output of {node.name!r}")
