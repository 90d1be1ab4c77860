"""From a request's options to what the talker needs. What a checkpoint cannot honour is refused here, by name."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from omnistage.ar.draw import Choice
from omnistage.contracts import SpeechOptions, SpeechSampling
from omnistage.errors import InvalidRequest
from omnistage_talker.models.base import Reference
from omnistage_talker.models.qwen3.request import FrameSampling
from omnistage_talker.models.qwen3_tts.config import Qwen3TTSConfig
from omnistage_talker.models.qwen3_tts.prompt import AUTO, Manner
from omnistage_talker.models.qwen3_tts.tokenizer import TextTokenizer

TAGS = {
    "zh": "chinese",
    "en": "english",
    "de": "german",
    "it": "italian",
    "pt": "portuguese",
    "es": "spanish",
    "ja": "japanese",
    "ko": "korean",
    "fr": "french",
    "ru": "russian",
}
"""BCP-47 -> the checkpoints' own names."""

UNNAMED = "default"
"""The one voice of checkpoints that have none with a name."""

ALWAYS = (
    *("task_type", "language", "non_streaming_mode", "max_new_tokens", "initial_codec_chunk_frames"),
    *("temperature", "top_k", "top_p", "repetition_penalty"),
    *("subtalker_temperature", "subtalker_top_k", "subtalker_top_p"),
)
"""Optional fields of speech requests that every checkpoint honours."""

CLONING = ("ref_audio", "ref_text", "x_vector_only_mode", "speaker_embedding")
"""Those that say which voice is cloned."""

_DIALECT = "_dialect"


def languages(config: Qwen3TTSConfig) -> tuple[str, ...]:
    """Languages that may be asked for; dialects come with their speakers."""
    return tuple(name for name in config.languages if not name.endswith(_DIALECT))


def accepted(config: Qwen3TTSConfig) -> tuple[str, ...]:
    """Optional fields of speech requests that the checkpoint honours."""
    instructed = ("instructions",) if _follows_instructions(config) else ()
    cloned = CLONING if config.task == "base" else ()
    return (*ALWAYS, *instructed, *cloned)


def _follows_instructions(config: Qwen3TTSConfig) -> bool:
    return config.task != "base" and not config.small


def voices(config: Qwen3TTSConfig) -> tuple[str, ...]:
    """Voices that may be asked for."""
    return tuple(config.speakers) if config.task == "custom_voice" else (UNNAMED,)


def check_options(config: Qwen3TTSConfig, options: SpeechOptions, reference: Reference | None) -> None:
    """Refuse what the checkpoint cannot honour.

    Raises:
        InvalidRequest: naming the field.
    """
    if options.task is not None and options.task != config.task:
        raise InvalidRequest(f"this model speaks with task_type {config.task!r} only", param="task_type")
    if options.speed != 1.0:
        raise InvalidRequest("this model speaks at its own pace", param="speed")
    _language(config, options.language)
    _check_instructions(config, options.instructions)
    if config.task == "base":
        _check_reference(config, reference)
    elif reference is not None:
        raise InvalidRequest(f"a model for {config.task} does not clone voices", param="ref_audio")
    elif options.voice.lower() not in voices(config):
        raise InvalidRequest(f"voice must be one of: {', '.join(voices(config))}", param="voice")
    if options.max_frames is not None and options.max_frames < 1:
        raise InvalidRequest("at least one frame is needed", param="max_new_tokens")
    _check_sampling(options.sampling or SpeechSampling())


def _language(config: Qwen3TTSConfig, language: str | None) -> str:
    if language is None or language.lower() == AUTO:
        return AUTO
    name = language.lower()
    if name not in languages(config):
        name = TAGS.get(name.split("-")[0], "")
    if name not in languages(config):
        raise InvalidRequest(f"language must be one of: {AUTO}, {', '.join(languages(config))}", param="language")
    return name


def _check_instructions(config: Qwen3TTSConfig, instructions: str | None) -> None:
    given = bool(instructions and instructions.strip())
    if config.task == "voice_design" and not given:
        raise InvalidRequest("the voice must be described", param="instructions")
    if given and not _follows_instructions(config):
        raise InvalidRequest("this model takes no instructions", param="instructions")


def _check_reference(config: Qwen3TTSConfig, reference: Reference | None) -> None:
    if reference is None or reference.embedding is None:
        raise InvalidRequest("a voice to clone is needed: ref_audio or speaker_embedding", param="ref_audio")
    width = config.talker.hidden_size
    if reference.embedding.shape != (width,) or not np.isfinite(reference.embedding).all():
        raise InvalidRequest(f"{width} finite numbers are needed", param="speaker_embedding")
    if reference.codes is None:
        if reference.text:
            raise InvalidRequest("what a recording says is of use only with the recording", param="ref_text")
        return
    if not reference.text.strip():
        raise InvalidRequest("what the recording says is needed, or x_vector_only_mode", param="ref_text")
    codes = reference.codes
    if codes.ndim != 2 or codes.shape[1] != config.num_groups or not len(codes):
        raise InvalidRequest(f"codes of {config.num_groups} groups are needed", param="ref_audio")
    if codes.dtype.kind not in "iu" or codes.min() < 0 or codes.max() >= config.predictor.vocab_size:
        raise InvalidRequest(f"codes below {config.predictor.vocab_size} are needed", param="ref_audio")


def _check_sampling(sampling: SpeechSampling) -> None:
    for name, value in (
        ("temperature", sampling.temperature),
        ("subtalker_temperature", sampling.residual_temperature),
        ("top_k", sampling.top_k),
        ("subtalker_top_k", sampling.residual_top_k),
    ):
        if value is not None and not 0 <= value < float("inf"):
            raise InvalidRequest("a number from 0 on is needed", param=name)
    for name, value in (("top_p", sampling.top_p), ("subtalker_top_p", sampling.residual_top_p)):
        if value is not None and not 0 < value <= 1:
            raise InvalidRequest("a number above 0 and up to 1 is needed", param=name)
    penalty = sampling.repetition_penalty
    if penalty is not None and not 0 < penalty < float("inf"):
        raise InvalidRequest("a number above 0 is needed", param="repetition_penalty")


def make_manner(
    config: Qwen3TTSConfig, tokenizer: TextTokenizer, options: SpeechOptions, reference: Reference | None
) -> Manner:
    """What shapes the prompt, of options that were checked."""
    instructions = (options.instructions or "").strip()
    cloned = reference if config.task == "base" else None
    codes = cloned.codes if cloned is not None else None
    non_streaming = options.non_streaming_mode
    return Manner(
        role_ids=tokenizer.role,
        instruct_ids=tokenizer.instruction(instructions) if instructions else (),
        language=_language(config, options.language),
        speaker=options.voice.lower() if config.task == "custom_voice" else None,
        embedding=None if cloned is None else _tensor(cloned.embedding, torch.float32),
        ref_ids=tuple(tokenizer.encode(cloned.text)) if cloned is not None and codes is not None else (),
        ref_codes=_tensor(codes, torch.int64),
        non_streaming=config.task != "base" if non_streaming is None else non_streaming,
    )


def _tensor(array: NDArray[np.generic] | None, dtype: torch.dtype) -> torch.Tensor | None:
    return None if array is None else torch.tensor(array, dtype=dtype)


def make_sampling(config: Qwen3TTSConfig, options: SpeechOptions, seed: int) -> FrameSampling:
    """How codes are chosen: as asked, else as the checkpoint says."""
    wanted, default = options.sampling or SpeechSampling(), config.sampling

    def pick(value: float | None, otherwise: float) -> float:
        return otherwise if value is None else value

    return FrameSampling(
        first=Choice(
            temperature=pick(wanted.temperature, default.temperature),
            top_k=int(pick(wanted.top_k, default.top_k)),
            top_p=pick(wanted.top_p, default.top_p),
            seed=seed,
        ),
        residual=Choice(
            temperature=pick(wanted.residual_temperature, default.residual_temperature),
            top_k=int(pick(wanted.residual_top_k, default.residual_top_k)),
            top_p=pick(wanted.residual_top_p, default.residual_top_p),
            seed=seed,
        ),
        repetition_penalty=pick(wanted.repetition_penalty, default.repetition_penalty),
    )
