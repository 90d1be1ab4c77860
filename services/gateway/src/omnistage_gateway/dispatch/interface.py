"""What the routers ask of the dispatcher: run a request through its pipeline and read what comes back."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from omnistage.config import ModelSpec
from omnistage.contracts import AnyWork, AudioDone, TextDelta, TextDone
from omnistage.pipelines import Pipeline
from omnistage_gateway.dispatch.fleet_table import EngineView


@dataclass(frozen=True)
class Plan:
    """A checked request, ready to be put into the line.

    Attributes:
        model: key of the served model.
        spec: its entry in the models file.
        pipeline: the way to go; may be a shorter one than the model's own (text without speech).
        build: makes the entry node's work item from (request_id, node, route).
        tenant: who pays in fair shares: the API key's name, or "anonymous".
        deadline_s: seconds from now.
        priority: "interactive" or "batch".
        streamed: whether the client gets the answer while it is made; else all of it at its end.
        payload: an array for the entry node. It goes to the tensor plane once the request has its place, and the work
            item's field `payload` refers to it.
        retry_key: what its client is recognized by if it is refused and comes back; empty for nobody.
    """

    model: str
    spec: ModelSpec
    pipeline: Pipeline
    build: Callable[[str, str, Mapping[str, str]], AnyWork]
    tenant: str = "anonymous"
    deadline_s: float = 300.0
    priority: str = "interactive"
    streamed: bool = True
    payload: NDArray[Any] | None = None
    retry_key: str = ""


@dataclass(frozen=True)
class AudioPiece:
    """Samples in order, overlaps dropped: [samples] int16, mono.

    Attributes:
        text: what the segment says, on its first piece, else empty.
    """

    samples: NDArray[Any]
    sample_rate_hz: int
    segment: int = 0
    text: str = ""


@dataclass(frozen=True, eq=False)
class VoiceFeatures:
    """What a recording is to a talker.

    Attributes:
        codes: [frames, groups] int32.
        embedding: [width] float32; None from encoders that have none.
    """

    codes: NDArray[Any]
    embedding: NDArray[Any] | None


Event = TextDelta | TextDone | AudioPiece | AudioDone | VoiceFeatures


class Running(Protocol):
    """A request under way."""

    @property
    def request_id(self) -> str: ...

    def events(self) -> AsyncIterator[Event]:
        """What all out edges deliver, in order within an edge, until every edge has ended.

        Raises:
            OmnistageError: the request failed (the stage's own error type, status and param), was cancelled
                or went past its deadline.
        """
        ...


class Dispatcher(Protocol):
    """Runs plans."""

    def run(self, plan: Plan, request_id: str) -> AbstractAsyncContextManager[Running]:
        """Wait in line for a slot, then start the request.

        Leaving the context before the events have ended cancels the request at every stage.

        Raises:
            Unavailable, RateLimited: refused at the door, with retry_after_s.
        """
        ...

    def offered(self) -> Mapping[str, ModelSpec]:
        """Models whose engines are all ready somewhere, by key."""
        ...

    def engine(self, key: str) -> EngineView:
        """What all ready instances of an engine announce; an empty view if there is none."""
        ...

    def ready(self) -> tuple[bool, str]:
        """Whether every model of the models file is offered, and if not, what is missing."""
        ...
