"""Fields of speech requests beyond OpenAI's: which of them a model honours, and what they mean. Pure functions.

What a model honours is what its talker announces and what the models file says besides (`accepts`). Whatever it
cannot honour is refused here, by name; values that depend on the checkpoint are checked by the talker.
"""

from __future__ import annotations

from dataclasses import dataclass

from omnistage.contracts import SpeechAbilities, SpeechOptions, SpeechSampling, SpeechTask
from omnistage.errors import InvalidRequest
from omnistage_gateway.problems import UNSUPPORTED, missing
from omnistage_gateway.schemas.base import voice_name
from omnistage_gateway.schemas.speech import SpeechRequest
from omnistage_gateway.served import UNNAMED_VOICE, Served
from omnistage_gateway.voices import StoredVoice

TASKS: dict[str, SpeechTask] = {"CustomVoice": "custom_voice", "VoiceDesign": "voice_design", "Base": "base"}
"""`task_type` -> the contracts' name."""

EXTRAS = (
    *("instructions", "task_type", "language", "non_streaming_mode", "max_new_tokens", "initial_codec_chunk_frames"),
    *("temperature", "top_k", "top_p", "repetition_penalty"),
    *("subtalker_temperature", "subtalker_top_k", "subtalker_top_p"),
    *("ref_audio", "speaker_embedding", "ref_text", "x_vector_only_mode"),
)
"""Fields that not every model honours, in the order in which they are checked."""


@dataclass(frozen=True)
class VoiceSource:
    """What a voice is cloned from; one of the first three.

    Attributes:
        audio: the client's `ref_audio`.
        embedding: the client's `speaker_embedding`.
        stored: a voice that was kept.
        text: what the recording says; empty to take its timbre alone.
    """

    audio: str | None = None
    embedding: tuple[float, ...] | None = None
    stored: StoredVoice | None = None
    text: str = ""


def honoured(served: Served, speech: SpeechAbilities) -> tuple[str, ...]:
    """The extra fields that a model honours."""
    accepted = {*served.spec.accepts, *speech.accepts}
    return tuple(name for name in EXTRAS if name in accepted)


def check_extras(request: SpeechRequest, served: Served, speech: SpeechAbilities) -> None:
    """Refuse fields that the model cannot honour, and combinations that mean nothing.

    Raises:
        InvalidRequest: names the field, and what the model can do.
    """
    known = honoured(served, speech)
    for name in EXTRAS:
        value = getattr(request, name)
        # An empty text and a "no" ask for nothing; a 0 does.
        if value is not None and value is not False and value != "" and name not in known:
            what = f"it honours: {', '.join(known)}" if known else "it honours no such field"
            raise InvalidRequest(
                f"Invalid value for '{name}': model '{served.key}' cannot honour it; {what}.",
                code=UNSUPPORTED,
                param=name,
            )
    _check_task(request, served, speech)
    if request.ref_audio is not None and request.speaker_embedding is not None:
        raise _wrong("speaker_embedding", "give ref_audio or speaker_embedding, not both")


def _check_task(request: SpeechRequest, served: Served, speech: SpeechAbilities) -> None:
    if request.task_type is not None and TASKS[request.task_type] not in speech.tasks:
        able = [name for name, task in TASKS.items() if task in speech.tasks]
        raise InvalidRequest(
            f"Invalid value for 'task_type': model '{served.key}' can do: {', '.join(able) or 'none of them'}.",
            code=UNSUPPORTED,
            param="task_type",
        )


def task_of(request: SpeechRequest, speech: SpeechAbilities) -> SpeechTask | None:
    """What makes the voice: as asked, else the model's only way; None if that is open or there is no choice."""
    if request.task_type is not None:
        return TASKS[request.task_type]
    only = [task for task in TASKS.values() if task in speech.tasks]
    return only[0] if len(only) == 1 else None


def voice_source(
    request: SpeechRequest, served: Served, speech: SpeechAbilities, stored: StoredVoice | None
) -> VoiceSource | None:
    """What the voice is cloned from; None for a voice that the model has by itself.

    Args:
        stored: the kept voice that the request names, if it names one.

    Raises:
        InvalidRequest: the fields do not go together, or one is missing.
    """
    given = request.ref_audio is not None or request.speaker_embedding is not None
    if stored is not None:
        _check_stored(stored, served, speech, given=given)
    cloned = given or (stored is not None and stored.type != "prompt")
    if not cloned:
        _check_not_cloned(request, speech)
        return None
    if stored is None and _named(request):
        raise _wrong("voice", f"the voice is that of the recording; leave it out or say '{UNNAMED_VOICE}'")
    if task_of(request, speech) not in ("base", None):
        raise _wrong("task_type", "only 'Base' clones voices; leave it out")
    if stored is not None:
        return VoiceSource(stored=stored, text=_text(request, stored.text, recorded=stored.type == "audio_sample"))
    if request.speaker_embedding is not None:
        return VoiceSource(embedding=tuple(request.speaker_embedding), text=_text(request, "", recorded=False))
    text = _text(request, "", recorded=True)
    if not text and not request.x_vector_only_mode:
        raise missing("ref_text", "what the recording says; or x_vector_only_mode: true")
    return VoiceSource(audio=request.recording, text=text)


def _check_stored(stored: StoredVoice, served: Served, speech: SpeechAbilities, *, given: bool) -> None:
    if given:
        raise _wrong("voice", f"'{stored.name}' is a voice of yours; give it or a recording, not both")
    check_can_speak(stored, served, speech, "voice")


def check_can_speak(stored: StoredVoice, served: Served, speech: SpeechAbilities, param: str) -> None:
    """Refuse a voice that was kept and that the model cannot speak with.

    Raises:
        InvalidRequest: names the field.
    """
    if not can_speak(stored, served, speech):
        what = "described voices" if stored.type == "prompt" else "voices from recordings"
        raise InvalidRequest(
            f"Invalid value for '{param}': model '{served.key}' cannot speak with {what}, such as '{stored.name}'.",
            code=UNSUPPORTED,
            param=param,
        )


def can_speak(stored: StoredVoice, served: Served, speech: SpeechAbilities) -> bool:
    """Whether a model can speak with a voice that was kept."""
    if stored.type == "prompt":
        return "voice_design" in speech.tasks
    return "speaker_embedding" in honoured(served, speech)


def _check_not_cloned(request: SpeechRequest, speech: SpeechAbilities) -> None:
    for name in ("ref_text", "x_vector_only_mode"):
        if getattr(request, name):
            raise _wrong(name, "it belongs to ref_audio or a voice that was uploaded")
    if task_of(request, speech) == "base" and not _named(request):
        raise missing("ref_audio", "or speaker_embedding, or a voice that was uploaded")


def _named(request: SpeechRequest) -> bool:
    """Whether the request names a voice."""
    return request.voice is not None and voice_name(request.voice) != UNNAMED_VOICE


def _text(request: SpeechRequest, kept: str, *, recorded: bool) -> str:
    """What the recording says, unless its timbre alone is wanted."""
    asked = (request.ref_text or "").strip()
    if asked and not recorded:
        raise _wrong("ref_text", "there is no recording that it could belong to")
    if request.x_vector_only_mode:
        if asked:
            raise _wrong("ref_text", "with x_vector_only_mode nothing of it is used")
        return ""
    return asked or kept


def extra_options(request: SpeechRequest, speech: SpeechAbilities, stored: StoredVoice | None) -> SpeechOptions:
    """The options that the extra fields stand for; voice, speed and seed are left to the caller.

    Raises:
        InvalidRequest: a voice that is to be described is not, or twice.
    """
    prompt = stored.prompt if stored is not None and stored.type == "prompt" else ""
    if prompt and request.instructions:
        raise _wrong("instructions", "the voice is described already")
    instructions = prompt or request.instructions or None
    task = task_of(request, speech)
    if task == "voice_design" and not (instructions or "").strip():
        raise missing("instructions", "they describe the voice")
    return SpeechOptions(
        voice="",
        instructions=instructions,
        language=request.language,
        task=task,
        non_streaming_mode=request.non_streaming_mode,
        max_frames=request.max_new_tokens,
        sampling=_sampling(request),
        seed_drawn=request.seed is None and request.max_new_tokens is None,
        first_frames=request.initial_codec_chunk_frames or 0,
    )


def _sampling(request: SpeechRequest) -> SpeechSampling | None:
    sampling = SpeechSampling(
        temperature=request.temperature,
        top_k=request.top_k,
        top_p=request.top_p,
        repetition_penalty=request.repetition_penalty,
        residual_temperature=request.subtalker_temperature,
        residual_top_k=request.subtalker_top_k,
        residual_top_p=request.subtalker_top_p,
    )
    return None if sampling == SpeechSampling() else sampling


def _wrong(param: str, reason: str) -> InvalidRequest:
    return InvalidRequest(f"Invalid value for '{param}': {reason}.", param=param)
