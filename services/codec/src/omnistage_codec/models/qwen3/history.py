"""What causal layers remember of the frames before: the last columns of their inputs, for a batch of streams."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Tails = list[Tensor]
"""Of one stream: for each layer that looks back, in the order in which they run, the last columns of its input."""


class History:
    """One pass of several streams through the network, each with frames of its own number.

    Rows are padded on the right to the longest. All layers are causal, so padding reaches no column that counts;
    `join` remembers for each row the columns that end where its own frames end.

    Attributes:
        after: the streams' tails after this pass, complete when the pass is; memory of their own.
    """

    def __init__(self, before: Sequence[Tails], frames: Sequence[int]) -> None:
        self.after: list[Tails] = [[] for _ in before]
        self._before = before
        self._frames = frames
        self._longest = max(frames)
        self._site = 0

    def join(self, columns: Tensor, width: int, axis: int = -1) -> Tensor:
        """Put the columns that came before in front; zeros where a stream begins.

        Args:
            columns: [batch, ...] with a whole number of columns per frame along `axis`.
            width: how many columns the layer looks back.
            axis: the time axis, negative.

        Returns:
            The columns with `width` more in front.
        """
        if width == 0:
            return columns
        joined = torch.cat((self._earlier(columns, width, axis), columns), dim=axis)
        rate = columns.shape[axis] // self._longest
        for row, frames in enumerate(self._frames):
            self.after[row].append(joined[row].narrow(axis, frames * rate, width).clone())
        self._site += 1
        return joined

    def _earlier(self, columns: Tensor, width: int, axis: int) -> Tensor:
        shape = list(columns.shape[1:])
        shape[axis] = width
        begin = columns.new_zeros(shape)
        return torch.stack([tails[self._site] if tails else begin for tails in self._before])
