"""The streams and durable consumers of a namespace, as values derived from what is served."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from omnistage.subjects import DEAD, FEED, OUT, WORK, Subjects
from omnistage.transport.options import BusOptions

VERSION = 1
"""Raised when a stream's or consumer's configuration changes; a lower version leaves a higher one's alone."""

VERSION_KEY = "omnistage-topology"
"""Metadata key that carries the version on the broker."""

StreamConfig = dict[str, Any]
"""A stream as the broker's API spells it; durations in nanoseconds."""


@dataclass(frozen=True)
class ConsumerConfig:
    """A durable consumer: `body` as the broker's API spells it, durations in nanoseconds."""

    stream: str
    name: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Topology:
    """All that a namespace needs on the broker.

    Attributes:
        namespace: first token of every subject.
        stages: (stage, engine key) of every model that is served, sorted, without duplicates.
    """

    namespace: str
    stages: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, namespace: str, stages: Iterable[tuple[str, str]]) -> Topology:
        """Topology of a namespace that serves these (stage, engine key) pairs."""
        return cls(namespace, tuple(sorted(set(stages))))

    @property
    def subjects(self) -> Subjects:
        return Subjects(self.namespace)

    def streams(self, options: BusOptions) -> list[StreamConfig]:
        """The four streams: work, feed, out and dead."""
        work = _stream(self.subjects, WORK, options) | {
            "retention": "workqueue",
            "discard": "new",
            # One request's item is queued once, however often it is published.
            "discard_new_per_subject": True,
            "max_msgs_per_subject": 1,
            "max_msgs": options.work_max_msgs,
            "max_bytes": options.work_max_bytes,
        }
        dead = _stream(self.subjects, DEAD, options) | {
            "discard": "old",
            "max_bytes": options.dead_max_bytes,
            "max_age": nanoseconds(options.dead_max_age_s),
        }
        return [work, self._log(FEED, options), self._log(OUT, options), dead]

    def consumers(self, options: BusOptions) -> list[ConsumerConfig]:
        """One durable pull consumer per stage and model."""
        return [consumer(self.subjects, stage, model, options) for stage, model in self.stages]

    def _log(self, kind: str, options: BusOptions) -> StreamConfig:
        source, destination = self.subjects.republish(kind)
        return _stream(self.subjects, kind, options) | {
            # A full stream refuses the writer; dropping the oldest record would tear a hole into somebody's log.
            "discard": "new",
            "max_bytes": options.log_max_bytes,
            "max_age": nanoseconds(options.log_max_age_s),
            "republish": {"src": source, "dest": destination},
        }


def consumer(subjects: Subjects, stage: str, model: str, options: BusOptions) -> ConsumerConfig:
    """The durable pull consumer that all instances of a stage and model share.

    The broker lets a standing consumer change neither its policies nor `max_waiting`.
    """
    name = f"{stage}-{model}"
    body: dict[str, Any] = {
        "durable_name": name,
        "name": name,
        "filter_subject": subjects.work_of(stage, model),
        "deliver_policy": "all",
        "ack_policy": "explicit",
        "ack_wait": nanoseconds(options.ack_wait_s),
        "max_deliver": -1,
        "max_ack_pending": options.max_ack_pending,
        "max_waiting": 4096,
        "metadata": version_metadata(),
    }
    return ConsumerConfig(subjects.stream(WORK), name, body)


def nanoseconds(seconds: float) -> int:
    """Duration as the broker's API spells it."""
    return round(seconds * 1e9)


def differs(wanted: dict[str, Any], existing: dict[str, Any]) -> bool:
    """Whether any field that we set is different on the broker (which adds fields and metadata of its own)."""
    for key, value in wanted.items():
        found = existing.get(key)
        if isinstance(value, dict):
            if not isinstance(found, dict) or differs(value, found):
                return True
        elif found != value and (value or found):
            return True
    return False


def version_metadata() -> dict[str, str]:
    """What we write on everything that we configure."""
    return {VERSION_KEY: str(VERSION)}


def is_of_later_version(existing: dict[str, Any]) -> bool:
    """Whether a later version than ours has configured something on the broker: then it is left as it is."""
    return version_of(existing) > VERSION


def version_of(existing: dict[str, Any]) -> int:
    """Topology version that configured something on the broker; 0 if it does not say."""
    value = (existing.get("metadata") or {}).get(VERSION_KEY, "0")
    return int(value) if str(value).isdigit() else 0


def _stream(subjects: Subjects, kind: str, options: BusOptions) -> StreamConfig:
    return {
        "name": subjects.stream(kind),
        "subjects": [subjects.everything(kind)],
        "retention": "limits",
        "storage": "file",
        "num_replicas": options.replicas,
        "allow_direct": True,
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "metadata": version_metadata(),
    }
