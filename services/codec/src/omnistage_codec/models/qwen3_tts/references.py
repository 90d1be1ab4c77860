"""The family's encoders as the engine sees them: clips in, codes and speaker embeddings out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from omnistage.errors import StageFailed
from omnistage_codec.models.base import Reference, ReferenceFacts, Samples
from omnistage_codec.models.qwen3_tts.config import TokenizerConfig
from omnistage_codec.models.qwen3_tts.encoder import Encoder
from omnistage_codec.models.qwen3_tts.mel import LogMel, samples_for
from omnistage_codec.models.qwen3_tts.speaker import SpeakerEncoder


class Qwen3TTSReferences:
    """Implements `ReferenceModel`.

    Args:
        encoder: waveform to codes.
        speaker: spectrogram to embedding, and what makes the spectrogram; None for checkpoints without them.
        config: what the checkpoint says about the codec.
        fingerprint: names the weights.
        batch_invariant: one clip in each pass.
    """

    def __init__(
        self,
        encoder: Encoder,
        speaker: tuple[SpeakerEncoder, LogMel] | None,
        config: TokenizerConfig,
        *,
        fingerprint: str,
        batch_invariant: bool = False,
    ) -> None:
        self._encoder = encoder
        self._speaker = speaker
        self._batch_invariant = batch_invariant
        self._facts = ReferenceFacts(
            sample_rate_hz=config.input_sample_rate,
            frame_rate_hz=config.input_sample_rate / config.encode_downsample_rate,
            min_samples=1 if speaker is None else samples_for(speaker[0].min_columns),
            fingerprint=fingerprint,
        )

    @property
    def facts(self) -> ReferenceFacts:
        return self._facts

    def encode(self, clips: Sequence[Samples]) -> list[Reference]:
        try:
            return self._encode(clips)
        except RuntimeError as error:  # torch's, out-of-memory included
            raise StageFailed(f"the encoder failed: {error}") from error

    @torch.inference_mode()
    def _encode(self, clips: Sequence[Samples]) -> list[Reference]:
        """The speaker encoder pools over the whole clip, so it takes one at a time."""
        weight = self._encoder.downsampling.weight
        waves = [torch.from_numpy(np.array(clip, np.float32)).to(weight.device) for clip in clips]
        batches = [[wave] for wave in waves] if self._batch_invariant else [waves]
        codes = [row for batch in batches for row in self._encoder([wave.to(weight.dtype) for wave in batch])]
        return [
            Reference(codes=row.to(torch.int32).cpu().numpy(), embedding=self._embedding(wave))
            for row, wave in zip(codes, waves, strict=True)
        ]

    def _embedding(self, wave: torch.Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None:
        if self._speaker is None:
            return None
        network, log_mel = self._speaker
        return network(log_mel(wave)).float().cpu().numpy()
