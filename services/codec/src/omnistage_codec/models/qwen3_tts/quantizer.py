"""Residual vector quantization: one semantic codebook and a stack of acoustic ones, side by side.

A codebook is stored as sums and counts of the vectors that fell to each entry; its entries are their quotients. Each
of the two stacks works in a narrow space of its own, between two projections.

Entries are computed in float32 whatever the network computes in: counts go beyond what float16 can hold, and what is
left after some groups is smaller than the digits that either narrow type keeps of an entry.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from omnistage_codec.models.qwen3.weights import Weights

_SMALLEST_USAGE = 1e-5


def take_codebook(weights: Weights, sums: str, entries: int, width: int) -> Tensor:
    """Entries [entries, width] float32 of a codebook whose sums are stored under the given name."""
    usage = weights.take("cluster_usage", entries, dtype=torch.float32).clamp(min=_SMALLEST_USAGE)
    return weights.take(sums, entries, width, dtype=torch.float32) / usage[:, None]


@dataclass(frozen=True)
class CodebookReader:
    """Codes to vectors.

    Attributes:
        codebooks: [groups, entries, width].
        projection: [outputs, width].
    """

    codebooks: Tensor
    projection: Tensor

    @staticmethod
    def take(weights: Weights, groups: int, entries: int, width: int, outputs: int) -> CodebookReader:
        layers = [weights.below(f"vq.layers.{group}._codebook") for group in range(groups)]
        # The way in belongs to training; it is checked like everything else that the checkpoint holds.
        weights.take("input_proj.weight", width, outputs, 1)
        codebooks = torch.stack([take_codebook(layer, "embedding_sum", entries, width) for layer in layers])
        return CodebookReader(
            codebooks.to(weights.placement.dtype),
            weights.take("output_proj.weight", outputs, width, 1).squeeze(-1),
        )

    def __call__(self, codes: Tensor) -> Tensor:
        """[batch, time, groups] int64 -> [batch, time, outputs]."""
        vectors = self.codebooks[0][codes[..., 0]]
        for group in range(1, len(self.codebooks)):
            vectors = vectors + self.codebooks[group][codes[..., group]]
        return functional.linear(vectors, self.projection)


@dataclass(frozen=True)
class CodebookSearch:
    """Vectors to codes: the nearest entry, then the nearest to what is left, and so on.

    Attributes:
        projection: [width, inputs].
        codebooks: [groups, entries, width] float32.
    """

    projection: Tensor
    codebooks: Tensor

    @staticmethod
    def take(weights: Weights, groups: int, entries: int, width: int, inputs: int) -> CodebookSearch:
        weights.take("output_proj.weight", inputs, width, 1)
        codebooks = []
        for group in range(groups):
            layer = weights.below(f"layers.{group}.codebook")
            layer.take("initialized", 1)
            codebooks.append(take_codebook(layer, "embed_sum", entries, width))
        return CodebookSearch(weights.take("input_proj.weight", width, inputs, 1).squeeze(-1), torch.stack(codebooks))

    def __call__(self, vectors: Tensor, groups: int) -> Tensor:
        """[batch, time, inputs] -> [batch, time, groups] int64."""
        left = functional.linear(vectors, self.projection).float()
        codes = []
        for codebook in self.codebooks[:groups]:
            # The exact form of the distance: the expanded one loses digits, and near entries would change places.
            nearest = torch.cdist(left, codebook, compute_mode="donot_use_mm_for_euclid_dist").argmin(dim=-1)
            left = left - codebook[nearest]
            codes.append(nearest)
        return torch.stack(codes, dim=-1)
