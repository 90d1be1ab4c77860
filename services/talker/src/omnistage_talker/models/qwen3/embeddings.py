"""Codec tokens and frames as rows of the talker's width."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding

from omnistage.ar.qwen3.weights import WeightSource
from omnistage_talker.models.qwen3.config import FrameConfig

PREFIX = "talker."


class CodecEmbeddings:
    """Loaded from a checkpoint.

    Args:
        config: sizes.
        take: gives the weights.
        residual: tables of groups 1 and up (`CodePredictor.tables`).
    """

    def __init__(self, config: FrameConfig, take: WeightSource, residual: tuple[Tensor, ...]) -> None:
        size = (config.talker.vocab_size, config.talker.hidden_size)
        self._codec = take(f"{PREFIX}model.codec_embedding.weight", size)
        self._residual = residual

    @property
    def device(self) -> torch.device:
        return self._codec.device

    @property
    def dtype(self) -> torch.dtype:
        return self._codec.dtype

    @property
    def width(self) -> int:
        return self._codec.shape[1]

    def codec(self, ids: Tensor) -> Tensor:
        """[n, width] of tokens of group 0 and special ones ([n] int64)."""
        return embedding(ids, self._codec)

    def frames(self, codes: Tensor) -> Tensor:
        """[n, width] of whole frames ([n, groups] int64): the sum over groups, added in their order."""
        total = embedding(codes[:, 0], self._codec)
        for group, table in enumerate(self._residual, start=1):
            total = total + embedding(codes[:, group], table)
        return total
