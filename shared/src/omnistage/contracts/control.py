"""Control: overtakes data, is never queued behind it. Received by every service."""

from __future__ import annotations

from typing import Literal

import msgspec

from omnistage.contracts.common import Message

ServiceState = Literal["starting", "ready", "draining", "failed"]


class Cancel(Message, frozen=True, kw_only=True, omit_defaults=True, tag="cancel"):
    """Stop a request at every stage and forget it. Idempotent."""

    request_id: str
    reason: str = "cancelled"


class Forget(Message, frozen=True, kw_only=True, omit_defaults=True, tag="forget"):
    """A request is over: drop what is still kept for it (tensor blocks, cached inputs)."""

    request_id: str


class Redo(Message, frozen=True, kw_only=True, omit_defaults=True, tag="redo"):
    """The payload of a record is gone: whoever holds the edge's source writes the edge again from there.

    Attributes:
        edge: name of the edge.
        seq: the first record that is needed again.
    """

    request_id: str
    edge: str
    seq: int


class Ping(Message, frozen=True, kw_only=True, omit_defaults=True, tag="ping"):
    """Ask every instance for its presence at once."""


class Drain(Message, frozen=True, kw_only=True, omit_defaults=True, tag="drain"):
    """Take no new work, finish what runs, then leave."""

    instance: str


class SpeechAbilities(Message, frozen=True, kw_only=True, omit_defaults=True):
    """What a talker's engine can be asked for, beyond a text and a voice.

    Attributes:
        tasks: what may make its voice, values of `omnistage.contracts.SpeechTask`; empty if there is no choice.
        languages: BCP-47 tags.
        accepts: optional fields of speech requests that it honours, e.g. "language".
    """

    tasks: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    accepts: tuple[str, ...] = ()


class EngineStatus(Message, frozen=True, kw_only=True, omit_defaults=True):
    """One engine of an instance.

    Attributes:
        engine: key in models.yaml.
        ready: whether it answers.
        detail: what it is doing while it is not ready, in a few words.
        slots: how many requests it runs at once.
        running: the requests that hold a slot now.
        queue: work items that wait for a slot, as the broker counts them.
        service_s: moving average of the seconds that a request holds a slot.
        voices: voices that the engine speaks with.
        facts: gauges that the engine announces about itself, e.g. "speed_min" of a voice.
        speech: what it can be asked for, if it speaks.
        media: kinds of media that it reads, values of `omnistage.contracts.MediaKind`, and "audio_in_video".
    """

    engine: str
    ready: bool
    detail: str = ""
    slots: int = 0
    running: tuple[str, ...] = ()
    queue: int = 0
    service_s: float = 0.0
    voices: tuple[str, ...] = ()
    facts: dict[str, float] = msgspec.field(default_factory=dict)
    speech: SpeechAbilities | None = None
    media: tuple[str, ...] = ()


class Presence(Message, frozen=True, kw_only=True, omit_defaults=True, tag="presence"):
    """An instance says that it lives, every second and whenever something changes.

    Attributes:
        started: unix time in seconds.
        running: the requests that it holds, over all engines.
        locality: equal for instances that reach each other's shared-memory blocks; empty for none.
    """

    service: str
    instance: str
    state: ServiceState
    version: str
    contract: int
    pid: int
    host: str
    started: float
    engines: tuple[EngineStatus, ...] = ()
    running: tuple[str, ...] = ()
    locality: str = ""


class Promise(Message, frozen=True, kw_only=True, omit_defaults=True):
    """A client that was refused may come back at a certain time, and room is kept for it then.

    Attributes:
        key: what it is recognized by; tells nothing about it.
        in_s: seconds from now until that time.
        engines: the engines on its request's route.
    """

    key: str
    in_s: float
    engines: tuple[str, ...]


class Promises(Message, frozen=True, kw_only=True, omit_defaults=True, tag="promises"):
    """A gateway tells the other gateways what it has promised, and whose promises are used up.

    Attributes:
        gateway: its instance name.
        claimed: keys of clients that have come, whoever promised it to them.
        wanted: engine -> tenant -> slots that the requests which come to the gateway would fill; None says nothing.
    """

    gateway: str
    booked: tuple[Promise, ...] = ()
    claimed: tuple[str, ...] = ()
    wanted: dict[str, dict[str, float]] | None = None


Control = Cancel | Forget | Redo | Ping | Drain | Presence | Promises
