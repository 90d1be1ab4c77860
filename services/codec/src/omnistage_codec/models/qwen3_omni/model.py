"""The family's decoder as the engine sees it."""

from __future__ import annotations

from omnistage_codec.models.base import WaveFacts
from omnistage_codec.models.qwen3.stream import StreamedWave
from omnistage_codec.models.qwen3_omni.config import Code2WavConfig
from omnistage_codec.models.qwen3_omni.decoder import Decoder
from omnistage_codec.models.qwen3_omni.layout import LAYOUT, SAMPLE_RATE_HZ


class Qwen3OmniWave(StreamedWave):
    """Streams of codes; every chunking gives the samples of the whole decode.

    Args:
        decoder: the network.
        config: what the checkpoint says about it.
        step_frames, batch_invariant: see `StreamedWave`.
    """

    def __init__(
        self, decoder: Decoder, config: Code2WavConfig, *, step_frames: int = 32, batch_invariant: bool = False
    ) -> None:
        samples_per_frame = decoder.waves.shape.samples_per_frame
        facts = WaveFacts(
            family="qwen3_omni",
            layout=LAYOUT,
            frame_width=config.num_quantizers,
            frame_dtype="int32",
            frame_rate_hz=SAMPLE_RATE_HZ / samples_per_frame,
            sample_rate_hz=SAMPLE_RATE_HZ,
            samples_per_frame=samples_per_frame,
            lookahead_frames=0,
            lag_samples=decoder.lag_samples,
        )
        super().__init__(
            decoder,
            facts,
            codebook_size=config.codebook_size,
            step_frames=step_frames,
            batch_invariant=batch_invariant,
        )
