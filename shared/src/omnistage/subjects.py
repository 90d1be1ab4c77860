"""The only place where a subject string is built or parsed.

Grammar: <ns>.v1.<class>.<stage>.<model>.<request_id>[.<edge>], tokens of [a-z0-9_-].
For control, <stage> is the kind of receiver ("request", "instance", "presence" …) and <model> a service or "all".
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from omnistage.errors import ConfigError

MAJOR = "v1"
_TOKEN = re.compile(r"[a-z0-9_-]{1,64}")

WORK, FEED, OUT, CTL, DEAD = "work", "feed", "out", "ctl", "dead"
LIVE_SUFFIX = "-live"
"""Accepted records of class feed are republished to class "feed-live", those of out to "out-live"."""

REPUBLISHED = tuple(f"*.{MAJOR}.{kind}{LIVE_SUFFIX}.>" for kind in (FEED, OUT))
"""Subjects of all namespaces that the broker alone publishes on, so that no client can forge a live record."""


def token(value: str) -> str:
    """The value itself, if it may stand in a subject. Raises ConfigError otherwise."""
    if not _TOKEN.fullmatch(value):
        raise ConfigError(f"{value!r} cannot be part of a subject: only a-z, 0-9, _ and -, 1 to 64 of them")
    return value


@dataclass(frozen=True)
class Subjects:
    """Subjects of one namespace (a setting, so that several deployments share a broker without meeting)."""

    namespace: str

    def __post_init__(self) -> None:
        token(self.namespace)

    def _join(self, *tokens: str) -> str:
        return ".".join((self.namespace, MAJOR, *tokens))

    def work(self, stage: str, model: str, request_id: str) -> str:
        """One work item. `stage` is the service, `model` the engine key."""
        return self._join(WORK, token(stage), token(model), token(request_id))

    def work_of(self, stage: str, model: str) -> str:
        """Filter of the consumer that all instances of a stage and model share."""
        return self._join(WORK, token(stage), token(model), "*")

    def feed(self, stage: str, model: str, request_id: str, edge: str) -> str:
        """Log of an edge between stages; `stage` and `model` are the writer's."""
        return self._join(FEED, token(stage), token(model), token(request_id), token(edge))

    def out(self, stage: str, model: str, request_id: str, edge: str) -> str:
        """Log of an edge to the gateway; `stage` and `model` are the writer's."""
        return self._join(OUT, token(stage), token(model), token(request_id), token(edge))

    def dead(self, stage: str, model: str, request_id: str) -> str:
        return self._join(DEAD, token(stage), token(model), token(request_id))

    def everything(self, kind: str) -> str:
        """All subjects of a class: what its stream captures."""
        return self._join(kind, ">")

    def of_request(self, kind: str, request_id: str) -> str:
        """All subjects of a request within a class: what a purge removes."""
        tail = ("*", "*", token(request_id))
        return self._join(kind, *tail) if kind in (WORK, DEAD) else self._join(kind, *tail, ">")

    def live(self, subject: str) -> str:
        """Where an accepted record of a feed or out log is republished."""
        head, _, rest = subject.removeprefix(self._join("")).partition(".")
        return self._join(head + LIVE_SUFFIX, rest)

    def republish(self, kind: str) -> tuple[str, str]:
        """Source and destination of a stream's republish rule."""
        return self._join(kind, ">"), self._join(kind + LIVE_SUFFIX, ">")

    def ctl_request(self, request_id: str) -> str:
        """Control that concerns one request, for every service."""
        return self._join(CTL, "request", "all", token(request_id))

    def ctl_requests(self) -> str:
        return self._join(CTL, "request", "all", "*")

    def ctl_instance(self, instance: str) -> str:
        """Control for one instance."""
        return self._join(CTL, "instance", "all", token(instance))

    def ctl_everyone(self) -> str:
        """Control for every instance (ping)."""
        return self._join(CTL, "everyone", "all", "all")

    def presence(self, service: str, instance: str) -> str:
        return self._join(CTL, "presence", token(service), token(instance))

    def presences(self) -> str:
        return self._join(CTL, "presence", "*", "*")

    def promises(self) -> str:
        """What gateways tell one another about whom they have refused."""
        return self._join(CTL, "promises", "gateway", "all")

    def stream(self, kind: str) -> str:
        """Name of the JetStream stream of a class, e.g. OMNI_WORK."""
        return f"{self.namespace}_{kind}".upper()

    def bucket(self, name: str) -> str:
        """Name of a key-value or object bucket of this namespace; the capital keeps the two apart."""
        return f"{self.namespace}_B_{token(name)}"


@dataclass(frozen=True)
class Parsed:
    """A subject taken apart."""

    namespace: str
    kind: str
    stage: str
    model: str
    request_id: str
    edge: str | None


def parse(subject: str) -> Parsed:
    """Take a work, feed, out or dead subject (or its live twin) apart. Raises ConfigError if it is none."""
    parts = subject.split(".")
    if len(parts) not in (6, 7) or parts[1] != MAJOR or not all(_TOKEN.fullmatch(part) for part in parts):
        raise ConfigError(f"not a subject of ours: {subject!r}")
    namespace, _, kind, stage, model, request_id, *edge = parts
    logs = (FEED, OUT, FEED + LIVE_SUFFIX, OUT + LIVE_SUFFIX)
    if kind not in (logs if edge else (WORK, DEAD)):
        raise ConfigError(f"not a subject of ours: {subject!r}")
    return Parsed(namespace, kind.removesuffix(LIVE_SUFFIX), stage, model, request_id, edge[0] if edge else None)
