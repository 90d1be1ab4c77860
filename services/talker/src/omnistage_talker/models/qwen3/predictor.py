"""The code predictor: from the talker's hidden state and a frame's first code to the frame's other codes.

Within a frame it reads the hidden state, then the embedding of each code so far; step i has a head and, for the next
step, an embedding table of its own. Its context is as short as a frame, so keys and values live for a frame only.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding

from omnistage.ar.draw import Choices, choose
from omnistage.ar.linear import Product, make_product
from omnistage.ar.qwen3.decoder import Decoder
from omnistage.ar.qwen3.rotary import plain
from omnistage.ar.qwen3.weights import WeightSource
from omnistage_talker.models.qwen3.config import FrameConfig

_PREFIX = "talker.code_predictor."


class CodePredictor:
    """Loaded from a checkpoint.

    Attributes:
        tables: embeddings of groups 1 and up, [vocab, talker width] each; also what the talker is fed with.
    """

    def __init__(self, config: FrameConfig, take: WeightSource) -> None:
        self.config = config.predictor
        vocab, width, wide = self.config.vocab_size, self.config.hidden_size, config.talker.hidden_size
        self._num_codes = config.num_groups - 1
        self._decoder = Decoder(self.config, take, f"{_PREFIX}model.", rotary=plain(config.num_groups))
        self.tables = tuple(
            take(f"{_PREFIX}model.codec_embedding.{index}.weight", (vocab, wide)) for index in range(self._num_codes)
        )
        self._heads = tuple(
            make_product(take(f"{_PREFIX}lm_head.{index}.weight", (vocab, width))) for index in range(self._num_codes)
        )
        self._narrow: Product | None = None
        self._narrow_bias: Tensor | None = None
        if width != wide:
            self._narrow = make_product(take(f"{_PREFIX}small_to_mtp_projection.weight", (width, wide)))
            self._narrow_bias = take(f"{_PREFIX}small_to_mtp_projection.bias", (width,))

    def complete(
        self, hidden: Tensor, first: Tensor, choices: Choices, *, logits: list[Tensor] | None = None
    ) -> tuple[Tensor, Tensor]:
        """The codes of groups 1 and up.

        Args:
            hidden: [rows, talker width], after the final norm. A row's results do not depend on the others where the
                number of rows is a `linear.padded_length`.
            first: [rows, talker width] embedding of the frame's code of group 0.
            choices: how each row chooses; group g uses stream g.
            logits: where given, each group's [rows, vocab] is added.

        Returns:
            [rows, groups - 1] int64, and [rows] bool whether all the row's logits were finite.
        """
        rows, device = hidden.shape[0], hidden.device
        memory = _Memory(self, rows, hidden)
        positions = torch.arange(2, device=device).repeat(rows)
        state = self._narrowed(torch.stack((hidden, first), dim=1).flatten(0, 1))
        state = self._decoder.forward(state, positions, memory.attend).view(rows, 2, -1)[:, 1]
        codes = torch.empty(rows, self._num_codes, dtype=torch.int64, device=device)
        noise = choices.noise(range(1, self._num_codes + 1), self.config.vocab_size)
        finite = torch.ones(rows, dtype=torch.bool, device=device)
        for index, head in enumerate(self._heads):
            if index:
                memory.length = 1 + index
                state = self._narrowed(embedding(codes[:, index - 1], self.tables[index - 1]))
                state = self._decoder.forward(state, positions[:rows] * 0 + memory.length, memory.attend)
            scores = head(self._decoder.normed(state)).float()
            if logits is not None:
                logits.append(scores)
            finite &= torch.isfinite(scores.sum(dim=-1))
            codes[:, index] = choose(scores, choices, None if noise is None else noise[index])
        return codes, finite

    def _narrowed(self, x: Tensor) -> Tensor:
        return x if self._narrow is None or self._narrow_bias is None else self._narrow(x) + self._narrow_bias


class _Memory:
    """Keys and values of the frame that is being completed, at fixed places: the sums' order never changes."""

    def __init__(self, model: CodePredictor, rows: int, like: Tensor) -> None:
        config, places = model.config, len(model.tables) + 1
        self._rows = rows
        self._kv_heads = config.num_kv_heads
        self._scale = config.head_dim**-0.5
        shape = (config.num_layers, rows, config.num_kv_heads, places, config.head_dim)
        self._keys, self._values = like.new_zeros(shape), like.new_zeros(shape)
        self._places = torch.arange(places, device=like.device)
        self.length = 0

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """See `decoder.Attention`; the new tokens of a row follow those at `length`."""
        rows, kv_heads, width = self._rows, self._kv_heads, queries.shape[-1]
        new = queries.shape[0] // rows
        end = self.length + new
        for memory, fresh in ((self._keys, keys), (self._values, values)):
            memory[layer, :, :, self.length : end] = fresh.view(rows, new, kv_heads, width).transpose(1, 2)
        # [rows, new, kv_heads, share, width] -> [rows * kv_heads, new * share, width]
        folded = queries.view(rows, new, kv_heads, -1, width).transpose(1, 2).reshape(rows * kv_heads, -1, width)
        scores = torch.bmm(folded * self._scale, self._keys[layer].flatten(0, 1).transpose(1, 2))
        share = folded.shape[1] // new
        last = (self.length + torch.arange(new, device=queries.device)).repeat_interleave(share)
        scores = scores.masked_fill(self._places[None, None, :] > last[None, :, None], -torch.inf)
        mixed = torch.bmm(torch.softmax(scores, dim=-1), self._values[layer].flatten(0, 1))
        return mixed.view(rows, kv_heads, new, share, width).transpose(1, 2).reshape(rows * new, -1)
