"""What the dispatcher tells about itself, and how that becomes metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from omnistage.observability import Metrics, names

Kind = Literal["text", "audio"]
"""Text means characters: the record that closes a text edge is none."""


def _nothing(*_: Any) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Hooks:
    """Called on the event loop; must not block or raise. The first argument is the served model's key, unless said
    otherwise.

    Attributes:
        refused: at the door or in the line: (model, error code).
        waited: a request got its place: (model, seconds in line).
        first_event: the first text or audio came: (model, kind, seconds since `run` was called).
        finished: a request that had a place is over: (model, "ok" or error code, seconds since `run` was called).
        republished: work was published again because its logs were silent: (model).
        hop: a record arrived: (edge, seconds since it was published).
        redone: samples were lost on their way and asked for again: (model).
        skipped: a record was read past that this version does not know: no argument.
        abandoned: cleaning up after a request failed for good: (model).
    """

    refused: Callable[[str, str], None] = _nothing
    waited: Callable[[str, float], None] = _nothing
    first_event: Callable[[str, Kind, float], None] = _nothing
    finished: Callable[[str, str, float], None] = _nothing
    republished: Callable[[str], None] = _nothing
    hop: Callable[[str, float], None] = _nothing
    redone: Callable[[str], None] = _nothing
    skipped: Callable[[], None] = _nothing
    abandoned: Callable[[str], None] = _nothing


def metrics_hooks(metrics: Metrics) -> Hooks:
    """Hooks that record the registered metrics."""

    def first_event(model: str, kind: Kind, seconds: float) -> None:
        metric = names.TIME_TO_FIRST_TOKEN if kind == "text" else names.TIME_TO_FIRST_AUDIO
        metrics.observe(metric, seconds, model=model)

    def finished(model: str, outcome: str, seconds: float) -> None:
        if outcome == "cancelled":
            metrics.add(names.CANCELLATIONS, model=model)

    return Hooks(
        refused=lambda model, code: metrics.add(names.REFUSALS, model=model, code=code),
        waited=lambda model, seconds: metrics.observe(names.WAITING_SECONDS, seconds, model=model),
        first_event=first_event,
        finished=finished,
        republished=lambda model: metrics.add(names.REPUBLISHED_WORK, model=model),
        hop=lambda edge, seconds: metrics.observe(names.HOP_SECONDS, seconds, edge=edge),
        redone=lambda model: metrics.add(names.REDOS, model=model),
        skipped=lambda: metrics.add(names.SKIPPED_MESSAGES, via="out"),
        abandoned=lambda model: metrics.add(names.ABANDONED, model=model),
    )
