"""The wire: one file per stage that receives, one tagged union per class of message.

Bodies are MessagePack maps with a "type" field as the tag; any MessagePack client can read them.
"""

from typing import Any, TypeVar

import msgspec

from omnistage.contracts.codec import DecodeFrames, EncodeReference, FrameChunk
from omnistage.contracts.common import (
    CONTRACT_VERSION,
    End,
    Failed,
    Failure,
    Inline,
    Message,
    Opened,
    Payload,
    Record,
    Released,
    TensorRef,
    UnknownRecord,
    Work,
    payload_nbytes,
)
from omnistage.contracts.control import (
    Cancel,
    Control,
    Drain,
    EngineStatus,
    Forget,
    Ping,
    Presence,
    Promise,
    Promises,
    Redo,
    SpeechAbilities,
)
from omnistage.contracts.output import (
    AudioDelta,
    AudioDone,
    EncodedReference,
    FinishReason,
    TextDelta,
    TextDone,
    TokenLogprob,
)
from omnistage.contracts.talker import (
    MediaGrid,
    SpeakText,
    SpeechOptions,
    SpeechSampling,
    SpeechTask,
    TextChunk,
    ThinkerRows,
    VoiceReference,
)
from omnistage.contracts.thinker import ChatMessage, GenerateText, MediaKind, MediaPart, Sampling
from omnistage.contracts.versions import FIRST_VERSION, needed_version, since

AnyWork = GenerateText | SpeakText | DecodeFrames | EncodeReference
"""Class "work"."""

FeedRecord = Opened | Released | End | Failed | TextChunk | ThinkerRows | FrameChunk
"""Class "feed": what stages send one another."""

OutRecord = Opened | Released | End | Failed | TextDelta | TextDone | AudioDelta | AudioDone | EncodedReference
"""Class "out": what the gateway receives."""

AnyRecord = (
    Opened
    | Released
    | End
    | Failed
    | TextChunk
    | ThinkerRows
    | FrameChunk
    | TextDelta
    | TextDone
    | AudioDelta
    | AudioDone
    | EncodedReference
)

ReadRecord = AnyRecord | UnknownRecord
"""What a log may hold for whoever reads it."""

_encoder = msgspec.msgpack.Encoder()
_work = msgspec.msgpack.Decoder(AnyWork)
_record = msgspec.msgpack.Decoder(AnyRecord)
_control = msgspec.msgpack.Decoder(Control)
_unknown_record = msgspec.msgpack.Decoder(UnknownRecord)
_TAGS = frozenset(str(kind.__struct_config__.tag) for kind in AnyRecord.__args__)

T = TypeVar("T")


def _read(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except RecursionError:
        raise msgspec.DecodeError("nested too deeply") from None


def encode(message: Message) -> bytes:
    """MessagePack bytes of a message."""
    return _encoder.encode(message)


def decode_work(body: bytes) -> AnyWork:
    """Read a work item.

    Raises:
        msgspec.ValidationError: unknown tag, missing field or wrong type, with the path to it.
        msgspec.DecodeError: not MessagePack.
    """
    return _read(_work, body)


def decode_record(body: bytes) -> ReadRecord:
    """Read a record of a feed or out log; a kind that a later version brought becomes an UnknownRecord.

    Raises as `decode_work`.
    """
    try:
        return _read(_record, body)
    except msgspec.ValidationError:
        unknown = _later_kind(body)
        if unknown is None:
            raise
        return unknown


def _later_kind(body: bytes) -> UnknownRecord | None:
    try:
        record = _read(_unknown_record, body)
    except msgspec.MsgspecError:
        return None
    return record if record.kind not in _TAGS else None


def decode_control(body: bytes) -> Any:
    """Read a control message (a member of `Control`). Raises as `decode_work`."""
    return _read(_control, body)


__all__ = [
    "CONTRACT_VERSION",
    "FIRST_VERSION",
    "AnyRecord",
    "AnyWork",
    "AudioDelta",
    "AudioDone",
    "Cancel",
    "ChatMessage",
    "Control",
    "DecodeFrames",
    "Drain",
    "EncodeReference",
    "EncodedReference",
    "End",
    "EngineStatus",
    "Failed",
    "Failure",
    "FeedRecord",
    "FinishReason",
    "Forget",
    "FrameChunk",
    "GenerateText",
    "Inline",
    "MediaGrid",
    "MediaKind",
    "MediaPart",
    "Message",
    "Opened",
    "OutRecord",
    "Payload",
    "Ping",
    "Presence",
    "Promise",
    "Promises",
    "ReadRecord",
    "Record",
    "Redo",
    "Released",
    "Sampling",
    "SpeakText",
    "SpeechAbilities",
    "SpeechOptions",
    "SpeechSampling",
    "SpeechTask",
    "TensorRef",
    "TextChunk",
    "TextDelta",
    "TextDone",
    "ThinkerRows",
    "TokenLogprob",
    "UnknownRecord",
    "VoiceReference",
    "Work",
    "decode_control",
    "decode_record",
    "decode_work",
    "encode",
    "needed_version",
    "payload_nbytes",
    "since",
]
