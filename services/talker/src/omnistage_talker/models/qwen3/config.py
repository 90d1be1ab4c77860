"""What a talker is, apart from what its prompts are made of."""

from __future__ import annotations

from dataclasses import dataclass

from omnistage.ar.qwen3.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class FrameConfig:
    """A decoder of frames.

    Attributes:
        talker, predictor: the decoder of frames and the one of a frame's residual codes.
        num_groups: codes per frame.
        end: the token of group 0 that ends an answer.
    """

    talker: DecoderConfig
    predictor: DecoderConfig
    num_groups: int
    end: int
