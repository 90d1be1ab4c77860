"""The family's decoder as the engine sees it."""

from __future__ import annotations

from omnistage_codec.models.base import WaveFacts
from omnistage_codec.models.qwen3.stream import StreamedWave
from omnistage_codec.models.qwen3_tts.config import TokenizerConfig
from omnistage_codec.models.qwen3_tts.decoder import Decoder
from omnistage_codec.models.qwen3_tts.layout import LAYOUT


class Qwen3TTSWave(StreamedWave):
    """Streams of the 12 Hz speech tokenizer's codes.

    Args:
        decoder: the network.
        config: what the checkpoint says about it.
        step_frames, batch_invariant: see `StreamedWave`.
    """

    def __init__(
        self, decoder: Decoder, config: TokenizerConfig, *, step_frames: int = 32, batch_invariant: bool = False
    ) -> None:
        sizes = config.decoder_config
        facts = WaveFacts(
            family="qwen3_tts",
            layout=LAYOUT,
            frame_width=sizes.num_quantizers,
            frame_dtype="int32",
            frame_rate_hz=config.output_sample_rate / config.decode_upsample_rate,
            sample_rate_hz=config.output_sample_rate,
            samples_per_frame=config.decode_upsample_rate,
            lookahead_frames=0,
        )
        super().__init__(
            decoder,
            facts,
            codebook_size=sizes.codebook_size,
            step_frames=step_frames,
            batch_invariant=batch_invariant,
        )
