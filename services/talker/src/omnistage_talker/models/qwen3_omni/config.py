"""What `config.json` of a Qwen3-Omni checkpoint says about the talker."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnistage.ar.qwen3.config import decoder_config, faults_of, read_json
from omnistage.ar.qwen3.positions import MediaIds, PositionRule
from omnistage.errors import ConfigError
from omnistage_talker.models.qwen3.config import FrameConfig

MODEL_TYPE = "qwen3_omni_moe"


@dataclass(frozen=True, slots=True)
class TextIds:
    """Ids of the text side's special tokens; those of speech have no place in the prompt, but embeddings."""

    im_start: int
    user: int
    assistant: int
    tts_bos: int
    tts_eos: int
    tts_pad: int


@dataclass(frozen=True, slots=True)
class CodecIds:
    """Ids of the codec side's special tokens that open an answer."""

    bos: int
    pad: int
    nothink: int
    think_bos: int
    think_eos: int


@dataclass(frozen=True, slots=True)
class OmniTalkerConfig:
    """The talker of a checkpoint.

    Attributes:
        frames: its decoder of frames.
        thinker_width: of the rows that it takes.
        projection_width: inside of its projections.
        text, codec: special tokens.
        speakers: name in lower case -> codec token.
        rule: where its prompt's tokens stand.
    """

    frames: FrameConfig
    thinker_width: int
    projection_width: int
    text: TextIds
    codec: CodecIds
    speakers: Mapping[str, int]
    rule: PositionRule


def read_config(folder: Path) -> OmniTalkerConfig:
    """Read a checkpoint folder's configuration.

    Raises:
        ConfigError: the file cannot be read, a key is missing, or it asks for what is not supported.
    """
    path = folder / "config.json"
    values = read_json(path)
    if values.get("model_type") != MODEL_TYPE:
        raise ConfigError(f"{path}: model_type {values.get('model_type')!r} is not supported, only {MODEL_TYPE!r}")
    if values.get("enable_audio_output") is False:
        raise ConfigError(f"{path}: the checkpoint does not speak: enable_audio_output is false")
    with faults_of(path):
        return _config(values)


def _config(values: dict[str, Any]) -> OmniTalkerConfig:
    talker = values["talker_config"]
    text, predictor = talker["text_config"], talker["code_predictor_config"]
    if talker["num_code_groups"] != predictor["num_code_groups"]:
        raise ConfigError("talker and code predictor disagree about num_code_groups")
    return OmniTalkerConfig(
        frames=FrameConfig(
            talker=decoder_config(text),
            predictor=decoder_config(predictor),
            num_groups=int(talker["num_code_groups"]),
            end=int(talker["codec_eos_token_id"]),
        ),
        thinker_width=int(talker["thinker_hidden_size"]),
        projection_width=int(text["intermediate_size"]),
        text=TextIds(
            im_start=int(values["im_start_token_id"]),
            user=int(values["user_token_id"]),
            assistant=int(values["assistant_token_id"]),
            tts_bos=int(values["tts_bos_token_id"]),
            tts_eos=int(values["tts_eos_token_id"]),
            tts_pad=int(values["tts_pad_token_id"]),
        ),
        codec=CodecIds(
            bos=int(talker["codec_bos_id"]),
            pad=int(talker["codec_pad_id"]),
            nothink=int(talker["codec_nothink_id"]),
            think_bos=int(talker["codec_think_bos_id"]),
            think_eos=int(talker["codec_think_eos_id"]),
        ),
        speakers={name.lower(): int(token) for name, token in talker["speaker_id"].items()},
        rule=PositionRule(
            ids=MediaIds(
                audio=int(talker["audio_token_id"]),
                image=int(talker["image_token_id"]),
                video=int(talker["video_token_id"]),
                audio_start=int(talker["audio_start_token_id"]),
                vision_start=int(talker["vision_start_token_id"]),
            ),
            merge_size=int(talker["spatial_merge_size"]),
            per_second=int(talker["position_id_per_seconds"]),
        ),
    )
