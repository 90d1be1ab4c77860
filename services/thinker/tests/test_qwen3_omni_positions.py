"""Positions equal transformers' for any mixture of media, and places that do not fit are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoePreTrainedModelForConditionalGeneration as Reference,
)

from omnistage.ar.qwen3.positions import Media, MediaIds, PositionRule, Video
from omnistage.errors import InvalidRequest
from omnistage_thinker.models.qwen3_omni.audio_tower import audio_tokens

IDS = MediaIds(audio=277, image=280, video=281, audio_start=275, vision_start=278)
AUDIO_END, VISION_END = 276, 279
RULE = PositionRule(IDS, merge_size=2, per_second=13)


class _Drawn:
    """A prompt drawn at random, for us and for the reference."""

    def __init__(self, seed: int, kinds: tuple[str, ...]) -> None:
        self._rng = np.random.default_rng(seed)
        self.ids: list[int] = []
        self.images: list[tuple[int, int, int]] = []
        self.videos: list[Video] = []
        self.audio_frames: list[int] = []
        self._text()
        for _ in range(int(self._rng.integers(1, 6))):
            getattr(self, f"_{kinds[int(self._rng.integers(len(kinds)))]}")()
            self._text()

    def _text(self) -> None:
        self.ids += self._rng.integers(0, 250, int(self._rng.integers(0, 5))).tolist()

    def _grid(self, time: int) -> tuple[int, int, int]:
        return time, 2 * int(self._rng.integers(1, 5)), 2 * int(self._rng.integers(1, 9))

    def _frames(self) -> int:
        frames = int(self._rng.integers(1, 450))
        self.audio_frames.append(frames)
        return frames

    def _audio(self) -> None:
        self.ids += [IDS.audio_start, *[IDS.audio] * audio_tokens(self._frames(), 100), AUDIO_END]

    def _image(self) -> None:
        grid = self._grid(1)
        self.images.append(grid)
        self.ids += [IDS.vision_start, *[IDS.image] * (grid[1] * grid[2] // 4), VISION_END]

    def _drawn_video(self) -> Video:
        seconds = float(self._rng.choice([0.5, 1.0, 2.0, 0.37]))
        self.videos.append(Video(self._grid(int(self._rng.integers(1, 6))), seconds))
        return self.videos[-1]

    def _video(self) -> None:
        time, height, width = self._drawn_video().grid
        self.ids += [IDS.vision_start, *[IDS.video] * (time * height * width // 4), VISION_END]

    def _both(self) -> None:
        time, height, width = self._drawn_video().grid
        both = [IDS.video] * (time * height * width // 4) + [IDS.audio] * audio_tokens(self._frames(), 100)
        self.ids += [IDS.vision_start, IDS.audio_start, *both, AUDIO_END, VISION_END]


def _expected(drawn: _Drawn, both: bool) -> tuple[torch.Tensor, float]:
    config = SimpleNamespace(
        image_token_id=IDS.image,
        video_token_id=IDS.video,
        audio_token_id=IDS.audio,
        vision_start_token_id=IDS.vision_start,
        audio_start_token_id=IDS.audio_start,
        position_id_per_seconds=13,
        audio_config=SimpleNamespace(n_window=50),
    )
    model: Any = SimpleNamespace(spatial_merge_size=2, config=config)
    model.get_llm_pos_ids_for_vision = Reference.get_llm_pos_ids_for_vision.__get__(model)
    grids = torch.tensor(drawn.images) if drawn.images else None
    videos = torch.tensor([video.grid for video in drawn.videos]) if drawn.videos else None
    ids = torch.tensor([drawn.ids])
    reference: Any = Reference.get_rope_index
    positions, delta = reference(
        model,
        input_ids=ids,
        image_grid_thw=grids,
        video_grid_thw=videos,
        attention_mask=torch.ones_like(ids),
        use_audio_in_video=both,
        audio_seqlens=torch.tensor(drawn.audio_frames),
        second_per_grids=torch.tensor([video.seconds_per_step for video in drawn.videos]),
    )
    return positions[:, 0], float(delta) + len(drawn.ids)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize(
    "kinds",
    [("audio",), ("image",), ("video",), ("image", "video"), ("audio", "image", "video"), ("both",), ("both", "image")],
    ids="+".join,
)
def test_any_mixture(kinds: tuple[str, ...], seed: int) -> None:
    drawn = _Drawn(seed, kinds)
    expected, following = _expected(drawn, both="both" in kinds)
    found, next_position = RULE.place(drawn.ids, Media(images=drawn.images, videos=drawn.videos))
    assert torch.equal(found, expected.float())
    # The reference keeps the difference to the number of tokens, in float32.
    assert next_position == pytest.approx(following, abs=1e-4)


def test_text_alone_counts() -> None:
    found, following = RULE.place([1, 2, 3], Media())
    assert found.tolist() == [[0.0, 1.0, 2.0]] * 3
    assert following == 3.0


@pytest.mark.parametrize(
    ("ids", "media", "told"),
    [
        ([278, 280, 279], Media(), "a place for a picture"),
        ([278, 281, 279], Media(), "a place for a video"),
        ([1, 2], Media(images=[(1, 2, 2)]), "fewer places"),
        ([278, 280, 279], Media(images=[(1, 4, 4)]), "has 4 tokens"),
        ([278, 275, 281, 277, 276, 279], Media(videos=[Video((2, 2, 2), 1.0)]), "has 2 tokens"),
    ],
)
def test_places_that_do_not_fit(ids: list[int], media: Media, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        RULE.place(ids, media)
