"""Experts and interleaved rotary positions, against their definitions written out token by token."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from omnistage.ar.qwen3.config import DecoderConfig, ExpertsConfig, decoder_config
from omnistage.ar.qwen3.perceptron import Experts
from omnistage.ar.qwen3.rotary import axes_of_pairs, interleaved, plain, rotate
from omnistage.errors import ConfigError

WIDTH, INNER, COUNT = 16, 24, 6

SECTION: dict[str, Any] = {
    "vocab_size": 10,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rope_theta": 10000,
    "rms_norm_eps": 1e-6,
    "rope_scaling": {"rope_type": "default", "mrope_section": [2, 1, 1]},
    "num_experts": COUNT,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
}


class _Drawn:
    """Weights drawn at random, remembered by name."""

    def __init__(self) -> None:
        self._generator = torch.Generator().manual_seed(0)
        self.weights: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self.weights[name] = torch.randn(shape, generator=self._generator)
        return self.weights[name]


def _swiglu(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    gate, up, down = (weights[f"{name}.{part}_proj.weight"] for part in ("gate", "up", "down"))
    hidden = gate @ x
    return down @ (hidden / (1 + torch.exp(-hidden)) * (up @ x))


@pytest.mark.parametrize("normalized", [True, False])
@pytest.mark.parametrize("shared_width", [0, 20])
@pytest.mark.parametrize("chosen", [1, 2, COUNT])
def test_experts_are_the_weighted_sum_of_the_likeliest(normalized: bool, shared_width: int, chosen: int) -> None:
    drawn = _Drawn()
    experts = Experts(ExpertsConfig(COUNT, chosen, INNER, normalized, shared_width, frozenset()), WIDTH, drawn.take, "")
    x = torch.randn(9, WIDTH, generator=torch.Generator().manual_seed(1))
    for token, made in zip(x, experts(x), strict=True):
        scores = (drawn.weights["gate.weight"] @ token).exp()
        scores = scores / scores.sum()
        best = sorted(range(COUNT), key=lambda index: -float(scores[index]))[:chosen]
        total = sum(float(scores[index]) for index in best) if normalized else 1.0
        expected = sum(
            (float(scores[index]) / total * _swiglu(token, drawn.weights, f"experts.{index}") for index in best),
            torch.zeros(WIDTH),
        )
        if shared_width:
            gate = torch.sigmoid(drawn.weights["shared_expert_gate.weight"] @ token)
            expected = expected + gate * _swiglu(token, drawn.weights, "shared_expert")
        assert torch.allclose(made, expected, atol=2e-4)


@pytest.mark.parametrize("shared_width", [0, 24])
def test_a_token_has_the_same_bits_beside_any_others(shared_width: int) -> None:
    experts = Experts(ExpertsConfig(COUNT, 2, INNER, True, shared_width, frozenset()), WIDTH, _Drawn().take, "")
    x = torch.randn(40, WIDTH, generator=torch.Generator().manual_seed(2))
    whole = experts(x)
    for first in range(0, 40, 4):
        assert torch.equal(experts(x[first : first + 4]), whole[first : first + 4])


def _rotary_config(head_dim: int, sections: tuple[int, int, int] | None) -> DecoderConfig:
    return DecoderConfig(10, 32, 48, 1, 2, 1, head_dim, 64, 10000.0, 1e-6, sections)


def test_pairs_take_turns() -> None:
    assert axes_of_pairs((4, 2, 2)).tolist() == [0, 1, 2, 0, 1, 2, 0, 0]
    assert axes_of_pairs((24, 20, 20)).tolist() == [0, 1, 2] * 20 + [0] * 4


def test_each_pair_turns_by_its_axis() -> None:
    config = _rotary_config(16, (4, 2, 2))
    positions = torch.tensor([[3.0, 7.0, 6.5], [1.0, 7.0, 2.0], [4.0, 7.0, 0.0]])
    cos, sin = interleaved(config, torch.zeros(1))(positions)
    x = torch.randn(3, 1, 16, generator=torch.Generator().manual_seed(0))
    turned = rotate(x, cos, sin)
    for token in range(3):
        for pair, axis in enumerate([0, 1, 2, 0, 1, 2, 0, 0]):
            angle = float(positions[axis, token]) / 10000.0 ** (2 * pair / 16)
            first, second = float(x[token, 0, pair]), float(x[token, 0, pair + 8])
            expected = (
                first * math.cos(angle) - second * math.sin(angle),
                second * math.cos(angle) + first * math.sin(angle),
            )
            assert turned[token, 0, [pair, pair + 8]].tolist() == pytest.approx(expected, abs=1e-5)


def test_equal_axes_are_plain_positions() -> None:
    config = _rotary_config(16, (4, 2, 2))
    cos, sin = interleaved(config, torch.zeros(1))(torch.tensor([[0.0, 5.0, 63.0]]).expand(3, -1))
    expected = plain(64)(config, torch.zeros(1))(torch.tensor([0, 5, 63]))
    assert torch.equal(cos, expected[0])
    assert torch.equal(sin, expected[1])


def test_interleaving_needs_sections() -> None:
    with pytest.raises(ConfigError, match="mrope_section is missing"):
        interleaved(_rotary_config(16, None), torch.zeros(1))


def test_a_section_with_experts_is_read() -> None:
    config = decoder_config(SECTION | {"decoder_sparse_step": 2, "mlp_only_layers": [3]})
    assert config.sections == (2, 1, 1)
    assert config.experts == ExpertsConfig(COUNT, 2, 24, True, 0, frozenset({0, 2, 3}))
    assert decoder_config(SECTION | {"num_experts": 0}).experts is None


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"rope_scaling": {"rope_type": "yarn"}}, "rotary type 'yarn'"),
        ({"rope_scaling": {"mrope_section": [4, 2, 2]}}, r"\[4, 2, 2\] does not fill head_dim 8"),
        ({"rope_scaling": {"mrope_section": [2, 2]}}, r"\[2, 2\] does not fill head_dim 8"),
        ({"attention_bias": True}, "biases of attention"),
        ({"hidden_act": "gelu"}, "activation 'gelu'"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3"),
        ({"num_experts_per_tok": 7}, "7 experts cannot be chosen from 6"),
    ],
    ids=str,
)
def test_what_is_not_supported_is_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        decoder_config(SECTION | changes)
