"""What a message must hold beyond its types before anything acts on it, and where one goes that does not.

Whoever has the broker's credentials can publish anything. A broken message is counted, a work item or record is kept
in class dead, and everything else goes on.
"""

from __future__ import annotations

import math

from omnistage.contracts import (
    AudioDelta,
    Control,
    Forget,
    FrameChunk,
    Payload,
    Ping,
    Presence,
    Record,
    Redo,
    SpeechAbilities,
    ThinkerRows,
    Work,
    decode_control,
)
from omnistage.contracts.control import Cancel, Drain
from omnistage.errors import BusError, ConfigError
from omnistage.observability import get_logger
from omnistage.pipelines import pipeline
from omnistage.subjects import parse, token
from omnistage.transport import Bus, Message
from omnistage.transport.bus import MAX_BODY_BYTES

_log = get_logger(__name__)

_MAX_NUMBER = 2**31
"""Largest epoch, position or offset of a record: half a day of samples at 48 kHz is two thirds of it."""
_MAX_RATE_HZ = 768_000
_MAX_AXES = 8
_MAX_SLOTS = 4096
_MAX_SECONDS = 86_400.0
_MAX_TEXT = 1024
_NOBODY = "unreadable"
"""Stands for a request id that cannot be part of a subject."""


class Broken(ValueError):
    """A message that can be decoded and makes no sense. Its text holds names and numbers of ours, no user's words."""


def _require(condition: bool, reason: str) -> None:
    if not condition:
        raise Broken(reason)


def check_work(work: Work, subject: str, engine: str) -> None:
    """A work item as its claimer must find it.

    Args:
        subject: where it lay.
        engine: whose queue that is.

    Raises:
        Broken: it says something else than its subject, or its route leads out of its pipeline.
        ConfigError: there is no such pipeline, or a name cannot be part of a subject.
    """
    _require(work.request_id == parse(subject).request_id, "work of another request than its subject says")
    _require(work.route.get(work.node) == engine, f"work for node {work.node!r} of another engine than its queue's")
    nodes = {node.name for node in pipeline(work.pipeline).stages()}
    _require(set(work.route) <= nodes, f"the route leads out of pipeline {work.pipeline!r}")
    for name in work.route.values():
        token(name)


def check_record(record: Record, request_id: str, edge: str) -> None:
    """A record as the reader of an edge's log must find it.

    Raises:
        Broken: it is of another edge, or holds numbers that no holder of an edge writes.
    """
    _require(record.request_id == request_id and record.edge == edge, f"a record of another edge than {edge}")
    _require(0 <= record.epoch <= _MAX_NUMBER, "an epoch out of range")
    _require(0 <= record.seq <= _MAX_NUMBER, "a position out of range")
    if isinstance(record, AudioDelta):
        _require(0 < record.sample_rate_hz <= _MAX_RATE_HZ, "a sample rate out of range")
        _require(0 <= record.offset <= _MAX_NUMBER, "an offset out of range")
        _require(0 <= record.segment <= _MAX_NUMBER, "a segment out of range")
        _check_payload(record.payload)
    elif isinstance(record, FrameChunk):
        _check_payload(record.payload)
        numbers = (record.frames, record.segment, record.segment_frame)
        _require(all(0 <= number <= _MAX_NUMBER for number in numbers), "frames or segments out of range")
        _require(record.frames == (record.payload.shape or (0,))[0], "another number of frames than the payload's")
    elif isinstance(record, ThinkerRows):
        _check_rows(record)


def _check_rows(record: ThinkerRows) -> None:
    count = len(record.tokens)
    numbers = (record.start, record.prompt_tokens, *record.tokens)
    _require(all(0 <= number <= _MAX_NUMBER for number in numbers), "tokens or positions out of range")
    for payload in (record.embeds, record.hidden):
        if payload is not None:
            _check_payload(payload)
            _require(len(payload.shape) == 2 and payload.shape[0] == count, "another number of rows than of tokens")
    if record.marks is not None:
        _check_payload(record.marks)
    sizes = [size for grid in record.media for size in (grid.time, grid.height, grid.width)]
    _require(all(0 < size <= _MAX_NUMBER for size in sizes), "a picture's size out of range")
    _require(all(0 <= grid.seconds_per_step < math.inf for grid in record.media), "a video's pace out of range")


def _check_payload(payload: Payload) -> None:
    fits = len(payload.shape) <= _MAX_AXES and all(0 <= size <= _MAX_NUMBER for size in payload.shape)
    _require(fits and math.prod(payload.shape) <= _MAX_NUMBER, "a payload's shape is out of range")


def read_control(message: Message) -> Control:
    """A control message.

    Raises:
        msgspec.MsgspecError: it cannot be decoded.
        Broken: it says something else than its subject, or its numbers are absurd.
    """
    control: Control = decode_control(message.body)
    target = message.subject.rpartition(".")[2]
    match control:
        case Cancel(request_id=name) | Forget(request_id=name) | Redo(request_id=name):
            _require(name == target, "control of another request than its subject says")
        case Presence() | Drain():
            _require(control.instance == target, "a message about another instance than its subject says")
        case Ping():
            pass
    if isinstance(control, Redo):
        _require(0 <= control.seq <= _MAX_NUMBER, "a position out of range")
    if isinstance(control, Presence):
        _check_presence(control)
    return control


def read_presence(message: Message) -> Presence | None:
    """The presence in a message; None for another kind of control. Raises as `read_control`."""
    control = read_control(message)
    return control if isinstance(control, Presence) else None


def _check_presence(presence: Presence) -> None:
    _require(math.isfinite(presence.started), "a start out of range")
    _require(len(presence.locality) <= _MAX_TEXT, "a locality out of range")
    for status in presence.engines:
        _require(0 <= status.slots <= _MAX_SLOTS, "slots out of range")
        _require(0 <= status.queue <= _MAX_NUMBER, "a queue out of range")
        _require(0 <= status.service_s <= _MAX_SECONDS, "a time of service out of range")
        _require(all(math.isfinite(fact) for fact in status.facts.values()), "a fact that is no number")
        _require(len(status.detail) <= _MAX_TEXT, "a detail out of range")
        _require(all(len(voice) <= _MAX_TEXT for voice in status.voices), "a voice's name out of range")
        speech = status.speech or SpeechAbilities()
        told = (*speech.tasks, *speech.languages, *speech.accepts, *status.media)
        _require(all(len(name) <= _MAX_TEXT for name in told), "an ability out of range")


async def bury(bus: Bus, message: Message, reason: str) -> bool:
    """Keep a broken work item or record in class dead, as much of it as the bus takes; False if the broker is away."""
    stage, model, request_id = (_token(part) for part in [*message.subject.split("."), "", "", ""][3:6])
    try:
        await bus.bury(stage, model, request_id, message.body[:MAX_BODY_BYTES], reason)
    except BusError as error:
        _log.warning("cannot bury", request_id=request_id, code=error.code)
        return False
    return True


def _token(text: str) -> str:
    try:
        return token(text)
    except ConfigError:
        return _NOBODY
