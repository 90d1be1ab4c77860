"""What `config.json` and `generation_config.json` of a Qwen3-TTS checkpoint say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omnistage.ar.qwen3.config import DecoderConfig, decoder_config, faults_of, read_json
from omnistage.contracts import SpeechTask
from omnistage.errors import ConfigError
from omnistage_talker.models.qwen3.config import FrameConfig

TASKS: tuple[SpeechTask, ...] = ("custom_voice", "voice_design", "base")
_SMALL = "0b6"


@dataclass(frozen=True, slots=True)
class TextIds:
    """Ids of the text side's special tokens."""

    im_start: int
    im_end: int
    assistant: int
    tts_bos: int
    tts_eos: int
    tts_pad: int


@dataclass(frozen=True, slots=True)
class CodecIds:
    """Ids of the codec side's special tokens. Tokens that sound are those below the predictor's vocabulary size."""

    bos: int
    eos: int
    pad: int
    think: int
    nothink: int
    think_bos: int
    think_eos: int


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """How the checkpoint wants its tokens chosen; `residual_*` is for all groups but the first."""

    temperature: float = 0.9
    top_k: int = 50
    top_p: float = 1.0
    repetition_penalty: float = 1.05
    residual_temperature: float = 0.9
    residual_top_k: int = 50
    residual_top_p: float = 1.0
    max_frames: int = 8192


@dataclass(frozen=True, slots=True)
class Qwen3TTSConfig:
    """A checkpoint.

    Attributes:
        task: "custom_voice", "voice_design" or "base".
        small: the 0.6B kind, which was not trained to follow instructions.
        talker, predictor: the decoder of frames and the one of a frame's residual codes.
        num_groups: codes per frame.
        text_vocab_size, text_hidden_size: of the text embeddings, before their projection.
        text, codec: special tokens.
        languages: name -> codec token.
        speakers: name -> codec token.
        dialects: speaker -> the language of its dialect, for those who have one.
        sampling: defaults.
    """

    task: SpeechTask
    small: bool
    talker: DecoderConfig
    predictor: DecoderConfig
    num_groups: int
    text_vocab_size: int
    text_hidden_size: int
    text: TextIds
    codec: CodecIds
    languages: Mapping[str, int]
    speakers: Mapping[str, int]
    dialects: Mapping[str, str]
    sampling: SamplingDefaults

    @property
    def frames(self) -> FrameConfig:
        """Its decoder of frames."""
        return FrameConfig(self.talker, self.predictor, self.num_groups, self.codec.eos)


def read_config(folder: Path) -> Qwen3TTSConfig:
    """Read a checkpoint folder's configuration.

    Raises:
        ConfigError: a file cannot be read, a key is missing, or it asks for what is not supported.
    """
    path = folder / "config.json"
    values = read_json(path)
    generation = folder / "generation_config.json"
    with faults_of(path):
        return _config(values, read_json(generation) if generation.exists() else {})


def _config(values: dict[str, Any], generation: dict[str, Any]) -> Qwen3TTSConfig:
    if values.get("model_type") != "qwen3_tts":
        raise ConfigError(f"model_type {values.get('model_type')!r} is not supported, only 'qwen3_tts'")
    if values["tokenizer_type"] != "qwen3_tts_tokenizer_12hz":
        raise ConfigError(f"tokenizer_type {values['tokenizer_type']!r} is not supported, only the one of 12 Hz")
    if values["tts_model_type"] not in TASKS:
        raise ConfigError(f"tts_model_type {values['tts_model_type']!r} is none of: {', '.join(TASKS)}")
    talker = values["talker_config"]
    predictor = talker["code_predictor_config"]
    if talker["num_code_groups"] != predictor["num_code_groups"]:
        raise ConfigError("talker and code predictor disagree about num_code_groups")
    speakers = {name.lower(): int(token) for name, token in (talker.get("spk_id") or {}).items()}
    return Qwen3TTSConfig(
        task=values["tts_model_type"],
        small=values["tts_model_size"] == _SMALL,
        talker=decoder_config(talker),
        predictor=decoder_config(predictor),
        num_groups=int(talker["num_code_groups"]),
        text_vocab_size=int(talker["text_vocab_size"]),
        text_hidden_size=int(talker["text_hidden_size"]),
        text=TextIds(
            im_start=int(values["im_start_token_id"]),
            im_end=int(values["im_end_token_id"]),
            assistant=int(values["assistant_token_id"]),
            tts_bos=int(values["tts_bos_token_id"]),
            tts_eos=int(values["tts_eos_token_id"]),
            tts_pad=int(values["tts_pad_token_id"]),
        ),
        codec=_codec_ids(talker),
        languages={name.lower(): int(token) for name, token in talker["codec_language_id"].items()},
        speakers=speakers,
        dialects={
            name.lower(): str(dialect).lower()
            for name, dialect in (talker.get("spk_is_dialect") or {}).items()
            if dialect
        },
        sampling=_sampling(generation),
    )


def _codec_ids(talker: dict[str, Any]) -> CodecIds:
    return CodecIds(
        bos=int(talker["codec_bos_id"]),
        eos=int(talker["codec_eos_token_id"]),
        pad=int(talker["codec_pad_id"]),
        think=int(talker["codec_think_id"]),
        nothink=int(talker["codec_nothink_id"]),
        think_bos=int(talker["codec_think_bos_id"]),
        think_eos=int(talker["codec_think_eos_id"]),
    )


def _sampling(values: dict[str, Any]) -> SamplingDefaults:
    """`do_sample` false means greedy, whatever the temperature beside it."""
    base = SamplingDefaults()

    def residual(name: str, default: float) -> float:
        return float(values.get(f"subtalker_{name}", default))

    return SamplingDefaults(
        temperature=float(values.get("temperature", base.temperature)) if values.get("do_sample", True) else 0.0,
        top_k=int(values.get("top_k", base.top_k)),
        top_p=float(values.get("top_p", base.top_p)),
        repetition_penalty=float(values.get("repetition_penalty", base.repetition_penalty)),
        residual_temperature=residual("temperature", 0.9) if values.get("subtalker_dosample", True) else 0.0,
        residual_top_k=int(residual("top_k", base.residual_top_k)),
        residual_top_p=residual("top_p", base.residual_top_p),
        max_frames=int(values.get("max_new_tokens", base.max_frames)),
    )
