"""Positions of a prompt with media, on three axes: time, height and width ("Qwen3-Omni technical report", 2025).

Text and sound move all axes by one a token. A picture stands still in time while rows and columns count from where it
begins; in a video time moves as well, by the clock. What follows begins behind the largest position so far. A video and
its own sound begin together, and their tokens are in the order of time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from omnistage.errors import InvalidRequest

Grid = tuple[int, int, int]
"""Patches of a picture or video along time, height and width; the latter two are multiples of the merge size."""


@dataclass(frozen=True, slots=True)
class MediaIds:
    """Ids of the tokens that stand for media, one for each result of a tower, and of what opens them."""

    audio: int
    image: int
    video: int
    audio_start: int
    vision_start: int


@dataclass(frozen=True, slots=True)
class Video:
    """Attributes:
    grid: its patches.
    seconds_per_step: time between neighbours along the first axis of the grid.
    """

    grid: Grid
    seconds_per_step: float


@dataclass(frozen=True, slots=True)
class Media:
    """Pictures and videos of a prompt, in order."""

    images: Sequence[Grid] = field(default_factory=tuple)
    videos: Sequence[Video] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True)
class PositionRule:
    """What positions depend on beside the prompt.

    Attributes:
        ids: tokens of media.
        merge_size: so many rows and columns of patches are one token.
        per_second: how far time moves in a second of video.
    """

    ids: MediaIds
    merge_size: int
    per_second: int

    def place(self, tokens: Sequence[int], media: Media) -> tuple[Tensor, float]:
        """Lay out a prompt.

        Returns:
            [3, tokens] float32, and the position of the token that follows.

        Raises:
            InvalidRequest: a picture or video has another number of tokens than its grid says, or is missing.
        """
        walk = _Walk(self, tokens, iter(media.images), iter(media.videos))
        while walk.index < len(tokens):
            walk.advance()
        if next(walk.images, None) is not None or next(walk.videos, None) is not None:
            raise InvalidRequest("the prompt has fewer places for pictures than there are pictures")
        placed = torch.cat(walk.parts, dim=1) if walk.parts else torch.zeros(3, 0)
        # Decoding goes on behind the largest position of all, which a video with sound may have left before its end.
        return placed, float(placed.max()) + 1 if len(tokens) else 0.0

    def grid_positions(self, grid: Grid, seconds_per_step: float) -> Tensor:
        """[3, tokens] float32 of a picture or video that begins at zero."""
        time, height, width = grid[0], grid[1] // self.merge_size, grid[2] // self.merge_size
        seconds = torch.arange(time).float() * torch.tensor(seconds_per_step, dtype=torch.float32)
        axes = seconds * self.per_second, torch.arange(height).float(), torch.arange(width).float()
        return torch.stack([axis.flatten() for axis in torch.meshgrid(*axes, indexing="ij")])


@dataclass(slots=True)
class _Walk:
    """How far a prompt is laid out."""

    rule: PositionRule
    tokens: Sequence[int]
    images: Iterator[Grid]
    videos: Iterator[Video]
    index: int = 0
    next: float = 0.0
    parts: list[Tensor] = field(default_factory=list)

    def advance(self) -> None:
        ids, token = self.rule.ids, self.tokens[self.index]
        if token == ids.image:
            grid = next(self.images, None)
            if grid is None:
                raise InvalidRequest("the prompt has a place for a picture that there is none for")
            self._add_block(self.rule.grid_positions(grid, 1.0), ids.image)
        elif token == ids.video:
            self._add_block(self._video_positions(), ids.video)
        elif self._sound_of_video():
            self._add_line(1)
            self._add_both()
        else:
            self._add_line(self._plain_run())

    def _plain_run(self) -> int:
        """Tokens from here on that are neither pictures nor the sound of a video."""
        special = (self.rule.ids.image, self.rule.ids.video, self.rule.ids.audio_start)
        end = self.index + 1
        while end < len(self.tokens) and self.tokens[end] not in special:
            end += 1
        return end - self.index

    def _sound_of_video(self) -> bool:
        ids = self.rule.ids
        opened = self.index > 0 and self.tokens[self.index - 1] == ids.vision_start
        return opened and self.tokens[self.index] == ids.audio_start

    def _video_positions(self) -> Tensor:
        video = next(self.videos, None)
        if video is None:
            raise InvalidRequest("the prompt has a place for a video that there is none for")
        return self.rule.grid_positions(video.grid, video.seconds_per_step)

    def _add_line(self, count: int) -> None:
        self._add((torch.arange(count).float() + self.next).expand(3, -1))

    def _add_block(self, positions: Tensor, token: int) -> None:
        count = positions.shape[1]
        run = self.tokens[self.index : self.index + count]
        if len(run) != count or any(other != token for other in run):
            raise InvalidRequest(f"a picture has {count} tokens, but the prompt has another number of places for it")
        self._add(positions + self.next)

    def _add_both(self) -> None:
        """A video and its sound: whichever is earlier comes first, the picture where both are."""
        ids, end = self.rule.ids, self.index
        while end < len(self.tokens) and self.tokens[end] in (ids.audio, ids.video):
            end += 1
        run = self.tokens[self.index : end]
        seen = self._video_positions() + self.next
        heard = (torch.arange(sum(token == ids.audio for token in run)).float() + self.next).expand(3, -1)
        if seen.shape[1] + heard.shape[1] != len(run):
            raise InvalidRequest(f"a video has {seen.shape[1]} tokens, but the prompt has other places for it")
        both = torch.cat((seen, heard), dim=1)
        # A stable sort keeps the picture before the sound of the same time.
        order = torch.sort(both[0], stable=True).indices
        self._add(both[:, order])
        # What follows goes on behind those tokens alone that are left when the other kind has ended.
        is_seen = order < seen.shape[1]
        others = (is_seen != is_seen[-1]).nonzero().flatten()
        left = order[int(others[-1]) + 1 :] if len(others) else order
        self.next = float(both[:, left].max()) + 1

    def _add(self, positions: Tensor) -> None:
        self.parts.append(positions)
        self.index += positions.shape[1]
        if positions.shape[1]:
            self.next = float(positions.max()) + 1
