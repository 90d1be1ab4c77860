"""What a checkpoint cannot honour is refused by name; what it can is honoured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from omnistage.contracts import SpeechOptions, SpeechSampling
from omnistage.errors import InvalidRequest
from omnistage_talker.models.base import Reference
from omnistage_talker.models.qwen3_tts.config import Qwen3TTSConfig, read_config
from omnistage_talker.models.qwen3_tts.options import accepted, check_options, make_manner, make_sampling
from omnistage_talker.models.qwen3_tts.tokenizer import load_tokenizer

EMBEDDING = np.ones(16, np.float32)
CODES = np.ones((5, 16), np.int32)
TIMBRE = Reference(embedding=EMBEDDING)
RECORDING = Reference(embedding=EMBEDDING, codes=CODES, text="Words.")


def _config(made: dict[str, Path], kind: str) -> Qwen3TTSConfig:
    return read_config(made[kind])


GOOD: list[tuple[str, dict[str, Any], Reference | None]] = [
    ("custom_voice", {"voice": "ryan"}, None),
    ("custom_voice", {"voice": "Ryan", "instructions": "Whisper.", "task": "custom_voice"}, None),
    ("custom_voice", {"voice": "dylan", "language": "zh-CN"}, None),
    ("custom_voice", {"voice": "dylan", "language": "Auto", "max_frames": 1}, None),
    ("custom_voice", {"voice": "ryan", "sampling": SpeechSampling(temperature=0.0, top_k=0, top_p=1.0)}, None),
    ("small", {"voice": "ryan", "instructions": "  "}, None),
    ("voice_design", {"voice": "default", "instructions": "An old man."}, None),
    ("base", {"voice": "mine", "language": "French"}, TIMBRE),
    ("base", {"voice": ""}, RECORDING),
]


@pytest.mark.parametrize(("kind", "options", "reference"), GOOD)
def test_what_a_checkpoint_can_do_is_accepted(
    made: dict[str, Path], kind: str, options: dict[str, Any], reference: Reference | None
) -> None:
    check_options(_config(made, kind), SpeechOptions(**options), reference)


def _cloned(**change: Any) -> Reference:
    return replace(RECORDING, **change)


BAD: list[tuple[str, dict[str, Any], Reference | None, str]] = [
    ("custom_voice", {"voice": "heart"}, None, "voice"),
    ("custom_voice", {"voice": ""}, None, "voice"),
    ("custom_voice", {"voice": "ryan", "task": "base"}, None, "task_type"),
    ("custom_voice", {"voice": "ryan", "speed": 1.1}, None, "speed"),
    ("custom_voice", {"voice": "ryan", "language": "klingon"}, None, "language"),
    ("custom_voice", {"voice": "ryan", "language": "sichuan_dialect"}, None, "language"),
    ("custom_voice", {"voice": "ryan", "language": ""}, None, "language"),
    ("custom_voice", {"voice": "ryan", "max_frames": 0}, None, "max_new_tokens"),
    ("custom_voice", {"voice": "ryan"}, TIMBRE, "ref_audio"),
    ("small", {"voice": "ryan", "instructions": "Whisper."}, None, "instructions"),
    ("voice_design", {"voice": "default"}, None, "instructions"),
    ("voice_design", {"voice": "ryan", "instructions": "An old man."}, None, "voice"),
    ("base", {"voice": ""}, None, "ref_audio"),
    ("base", {"voice": ""}, Reference(codes=CODES, text="Words."), "ref_audio"),
    ("base", {"voice": "", "instructions": "Whisper."}, TIMBRE, "instructions"),
    ("base", {"voice": ""}, _cloned(text=" "), "ref_text"),
    ("base", {"voice": ""}, _cloned(codes=None), "ref_text"),
    ("base", {"voice": ""}, _cloned(embedding=EMBEDDING[:8]), "speaker_embedding"),
    ("base", {"voice": ""}, _cloned(embedding=EMBEDDING * np.float32("nan")), "speaker_embedding"),
    ("base", {"voice": ""}, _cloned(codes=CODES[:, :8]), "ref_audio"),
    ("base", {"voice": ""}, _cloned(codes=CODES[:0]), "ref_audio"),
    ("base", {"voice": ""}, _cloned(codes=CODES * 2048), "ref_audio"),
    ("base", {"voice": ""}, _cloned(codes=-CODES), "ref_audio"),
    ("base", {"voice": ""}, _cloned(codes=CODES.astype(np.float32)), "ref_audio"),
]
for _name, _sampling in {
    "temperature": SpeechSampling(temperature=-0.1),
    "subtalker_temperature": SpeechSampling(residual_temperature=float("inf")),
    "top_k": SpeechSampling(top_k=-1),
    "subtalker_top_k": SpeechSampling(residual_top_k=-1),
    "top_p": SpeechSampling(top_p=0.0),
    "subtalker_top_p": SpeechSampling(residual_top_p=1.1),
    "repetition_penalty": SpeechSampling(repetition_penalty=0.0),
}.items():
    BAD.append(("custom_voice", {"voice": "ryan", "sampling": _sampling}, None, _name))


@pytest.mark.parametrize(("kind", "options", "reference", "param"), BAD)
def test_what_it_cannot_do_is_refused_by_name(
    made: dict[str, Path], kind: str, options: dict[str, Any], reference: Reference | None, param: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_options(_config(made, kind), SpeechOptions(**options), reference)
    assert caught.value.param == param


@pytest.mark.parametrize(
    ("kind", "whole_text_first"), [("custom_voice", True), ("voice_design", True), ("base", False)]
)
def test_whether_the_whole_text_comes_first(made: dict[str, Path], kind: str, whole_text_first: bool) -> None:
    config = _config(made, kind)
    tokenizer = load_tokenizer(made[kind], config.text)
    for asked, expected in ((None, whole_text_first), (True, True), (False, False)):
        options = SpeechOptions(voice="ryan", non_streaming_mode=asked)
        assert make_manner(config, tokenizer, options, TIMBRE).non_streaming is expected


def test_sampling_is_as_asked_or_else_as_the_checkpoint_says(made: dict[str, Path]) -> None:
    config = _config(made, "custom_voice")
    default = make_sampling(config, SpeechOptions(voice="ryan"), 7)
    assert (default.first.temperature, default.first.top_k, default.repetition_penalty) == (0.9, 50, 1.05)
    assert default.residual.seed == default.first.seed == 7
    asked = SpeechSampling(temperature=0.0, residual_top_k=3, top_p=0.5, repetition_penalty=1.0)
    mixed = make_sampling(config, SpeechOptions(voice="ryan", sampling=asked), 7)
    assert (mixed.first.temperature, mixed.first.top_k, mixed.first.top_p) == (0.0, 50, 0.5)
    assert (mixed.residual.temperature, mixed.residual.top_k, mixed.repetition_penalty) == (0.9, 3, 1.0)


@pytest.mark.parametrize(
    ("kind", "instructed", "cloned"),
    [("custom_voice", True, False), ("small", False, False), ("voice_design", True, False), ("base", False, True)],
)
def test_what_a_checkpoint_honours_is_announced(
    made: dict[str, Path], kind: str, instructed: bool, cloned: bool
) -> None:
    fields = accepted(_config(made, kind))
    assert ("instructions" in fields, "ref_audio" in fields) == (instructed, cloned)
    assert {"language", "temperature", "task_type"} <= set(fields)
    assert len(set(fields)) == len(fields)
