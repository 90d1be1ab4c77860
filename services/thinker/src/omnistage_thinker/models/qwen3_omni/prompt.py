"""A prompt as the decoder takes it: embeddings with media in their places, positions, and what goes deeper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omnistage.ar.qwen3.positions import Media, PositionRule
from omnistage.errors import InvalidRequest
from omnistage_thinker.models.qwen3_omni.thinker import Thinker
from omnistage_thinker.models.qwen3_omni.vision_tower import Seen


@dataclass(frozen=True, slots=True)
class Towers:
    """What the towers made of a prompt's media, each kind in order and joined.

    Attributes:
        audio: [tokens, width]; None if there is none.
        images, videos: likewise.
    """

    audio: Tensor | None = None
    images: Seen | None = None
    videos: Seen | None = None


@dataclass(frozen=True, slots=True)
class Prompt:
    """Attributes:
    ids: of the tokens.
    embeds: [tokens, width], layer 0.
    positions: [3, tokens] float32.
    next_position: of the first token of the answer.
    deep: what is added to the output of the first layers, [tokens, width] each; empty without pictures.
    """

    ids: Sequence[int]
    embeds: Tensor
    positions: Tensor
    next_position: float
    deep: tuple[Tensor, ...]


def make_prompt(thinker: Thinker, ids: Sequence[int], media: Media, towers: Towers) -> Prompt:
    """Put media into their places.

    Raises:
        InvalidRequest: places and media do not match in number.
    """
    config, device = thinker.config, thinker.device
    rule = PositionRule(config.ids, config.vision.merge_size, config.positions_per_second)
    positions, next_position = rule.place(ids, media)
    tokens = torch.tensor(list(ids), dtype=torch.int64, device=device)
    embeds = thinker.embed(tokens)
    if towers.audio is not None or bool((tokens == config.ids.audio).any()):
        embeds = _placed(embeds, tokens == config.ids.audio, towers.audio)
    deep: list[Tensor] = []
    for token, seen in ((config.ids.image, towers.images), (config.ids.video, towers.videos)):
        places = tokens == token
        if seen is None and not bool(places.any()):
            continue
        embeds = _placed(embeds, places, None if seen is None else seen.embeds)
        deep = deep or [torch.zeros_like(embeds) for _ in config.vision.deep_layers]
        deep = [_placed(rows, places, more) for rows, more in zip(deep, seen.deep if seen else (), strict=True)]
    return Prompt(tuple(ids), embeds, positions.to(device), next_position, tuple(deep))


def _placed(rows: Tensor, places: Tensor, results: Tensor | None) -> Tensor:
    """Rows whose places ([tokens] bool) hold a tower's results instead."""
    count = 0 if results is None else len(results)
    if results is None or count != int(places.sum()):
        raise InvalidRequest(f"the prompt has {int(places.sum())} places for media that make {count} tokens")
    out = rows.clone()
    out[places] = results.to(rows)
    return out
