"""Implements `omnistage_talker.models.frames.FrameModel`."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from omnistage.ar.kv_cache import PagedKVCache
from omnistage.contracts import SpeechOptions
from omnistage_talker.models.base import Reference, SpeechFacts
from omnistage_talker.models.qwen3.request import FrameRequest
from omnistage_talker.models.qwen3.runner import FrameRunner
from omnistage_talker.models.qwen3_tts.checkpoint import load_talker
from omnistage_talker.models.qwen3_tts.layout import FRAME_RATE_HZ, LAYOUT
from omnistage_talker.models.qwen3_tts.options import (
    TAGS,
    accepted,
    check_options,
    languages,
    make_manner,
    make_sampling,
    voices,
)
from omnistage_talker.models.qwen3_tts.prompt import Prompt
from omnistage_talker.models.qwen3_tts.talker import Talker
from omnistage_talker.models.qwen3_tts.tokenizer import ArrivingText, TextTokenizer, load_tokenizer


class Qwen3TTS:
    """A loaded checkpoint.

    Args:
        folder: in the layout of the Hugging Face repositories.
        device, dtype: where and in what it computes.
        context: positions that prompt and frames may have together; None for all that the model was made for.

    Raises:
        ConfigError: the folder is no such checkpoint.
    """

    def __init__(
        self, folder: Path, *, device: str = "cpu", dtype: str = "float32", context: int | None = None
    ) -> None:
        self.talker = load_talker(folder, device=device, dtype=dtype, length=context)
        config = self.talker.config
        self._tokenizer = load_tokenizer(folder, config.text)
        self.context = context or config.talker.max_length
        self.end = (config.codec.eos,)
        self.max_frames = config.sampling.max_frames
        offered = languages(config)
        self.facts = SpeechFacts(
            family="qwen3_tts",
            layout=LAYOUT,
            frame_width=config.num_groups,
            frame_dtype="int32",
            frame_rate_hz=FRAME_RATE_HZ,
            voices=voices(config),
            languages=tuple(tag for tag, name in TAGS.items() if name in offered),
            native_speed_range=(1.0, 1.0),
            tasks=(config.task,),
            accepts=accepted(config),
        )

    def make_runner(self, num_blocks: int, block_tokens: int, *, batch_invariant: bool) -> FrameRunner:
        """See `FrameModel.make_runner`."""
        embeddings = self.talker.embeddings
        shape = self.talker.cache_shape(num_blocks, block_tokens)
        cache = PagedKVCache(shape, dtype=embeddings.dtype, device=str(embeddings.device))
        return FrameRunner(self.talker, cache, batch_invariant=batch_invariant)

    def check_options(self, options: SpeechOptions, reference: Reference | None) -> None:
        """See `FrameModel.check_options`."""
        check_options(self.talker.config, options, reference)

    def begin(self, options: SpeechOptions, reference: Reference | None) -> Spoken:
        """See `FrameModel.begin`."""
        return Spoken(self.talker, self._tokenizer, options, reference)

    def example(self) -> tuple[SpeechOptions, Reference | None]:
        """See `FrameModel.example`."""
        task = self.talker.config.task
        width = self.talker.config.talker.hidden_size
        reference = Reference(embedding=np.zeros(width, np.float32)) if task == "base" else None
        calm = "A calm voice." if task == "voice_design" else None
        return SpeechOptions(voice=self.facts.voices[0], instructions=calm), reference


class Spoken:
    """Implements `omnistage_talker.models.frames.Utterance`."""

    def __init__(
        self, talker: Talker, tokenizer: TextTokenizer, options: SpeechOptions, reference: Reference | None
    ) -> None:
        self._config = talker.config
        self._options = options
        self._text = ArrivingText(tokenizer)
        self._prompt = Prompt(
            talker.embeddings, talker.config, make_manner(talker.config, tokenizer, options, reference)
        )

    @property
    def prompt_length(self) -> int | None:
        """See `Utterance.prompt_length`."""
        prefill = self._prompt.prefill
        return None if prefill is None else len(prefill)

    @property
    def text_tokens(self) -> int:
        """See `Utterance.text_tokens`."""
        return self._prompt.num_text

    def add(self, text: str) -> None:
        """See `Utterance.add`."""
        self._prompt.add(self._text.feed(text))

    def finish(self) -> None:
        """See `Utterance.finish`."""
        self._prompt.add(self._text.finish())
        self._prompt.finish()

    def ready(self, frames: int) -> bool:
        """See `Utterance.ready`."""
        return self._prompt.later.ready(frames)

    def payload(self, seed: int) -> FrameRequest:
        """See `Utterance.payload`."""
        prefill = self._prompt.prefill
        assert prefill is not None, "too little text to begin"
        return FrameRequest(prefill, self._prompt.later, make_sampling(self._config, self._options, seed))
