"""A layer's perceptron: SwiGLU (Shazeer, "GLU variants improve transformer", 2020), or a choice of several such experts
for each token (Shazeer et al., "Outrageously large neural networks", 2017)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from omnistage.ar.linear import make_product, padded
from omnistage.ar.qwen3.config import ExpertsConfig
from omnistage.ar.qwen3.weights import WeightSource

_GATE_COLUMNS = 8
"""Copies of the shared expert's gate: `linear.padded_length` holds for widths that are multiples of this."""


class Perceptron:
    """down(silu(gate x) * up x)."""

    def __init__(self, width: int, inner: int, take: WeightSource, prefix: str) -> None:
        gate, up = (take(f"{prefix}{name}_proj.weight", (inner, width)) for name in ("gate", "up"))
        self._gate_up = make_product(torch.cat((gate, up)))
        self._down = make_product(take(f"{prefix}down_proj.weight", (width, inner)))

    def __call__(self, x: Tensor) -> Tensor:
        gate, up = self._gate_up(x).chunk(2, dim=-1)
        return self._down(silu(gate) * up)


class Experts:
    """The likeliest experts of each token, weighted by their probabilities, and the shared one, weighted by its gate.

    A token's sum goes by the experts' numbers, and each expert gets its rows padded, so that a token's result does not
    depend on the others.
    """

    def __init__(self, config: ExpertsConfig, width: int, take: WeightSource, prefix: str) -> None:
        self._config = config
        self._router = make_product(take(f"{prefix}gate.weight", (config.count, width)))
        self._experts = [
            Perceptron(width, config.width, take, f"{prefix}experts.{index}.") for index in range(config.count)
        ]
        self._shared: Perceptron | None = None
        if config.shared_width:
            self._shared = Perceptron(width, config.shared_width, take, f"{prefix}shared_expert.")
            gate = take(f"{prefix}shared_expert_gate.weight", (1, width))
            self._shared_gate = make_product(gate.expand(_GATE_COLUMNS, -1).contiguous())

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, width] -> the same."""
        probabilities = torch.softmax(self._router(x).float(), dim=-1)
        weights, chosen = probabilities.topk(self._config.chosen, dim=-1)
        if self._config.normalized:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        weights = weights.to(x.dtype)
        out = torch.zeros_like(x)
        for index in torch.bincount(chosen.flatten()).nonzero().flatten().tolist():
            tokens, places = torch.where(chosen == index)
            made = self._experts[index](padded(x[tokens]))[: len(tokens)]
            out.index_add_(0, tokens, made * weights[tokens, places, None])
        if self._shared is not None:
            out = out + torch.sigmoid(self._shared_gate(x))[:, :1] * self._shared(x)
        return out
