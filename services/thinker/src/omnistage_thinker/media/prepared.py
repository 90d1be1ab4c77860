"""Media as a model takes them: what decoding and preprocessing hand to the towers and to the prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from omnistage.ar.qwen3.positions import Grid, Media, Video
from omnistage.contracts import MediaKind


@dataclass(frozen=True, eq=False, slots=True)
class PreparedMedia:
    """All media of one conversation, each kind in the order of the prompt. On the CPU.

    Names, shapes and types are those of transformers' processors for Qwen omni models.

    Attributes:
        order: what stands in the prompt, in order; the sound of a video is no entry of its own.
        input_features: [clips, mel bins, longest] float32 log-mel spectrograms, zeros behind a shorter clip's end. The
            sounds of videos are among them, each where its video stands.
        feature_attention_mask: [clips, longest] int64, one where a clip has a column.
        pixel_values: [patches, values] float32, the patches of all pictures.
        image_grid_thw: [pictures, 3] int64, each one's patches along time, height and width.
        pixel_values_videos: likewise, of all videos.
        video_grid_thw: likewise.
        video_second_per_grid: [videos] float32, seconds between neighbours along a grid's first axis.
        video_has_sound: for each video, whether a clip is its sound.
        content_hash: of everything above, hexadecimal: equal for equal inputs of the model alone. Two prompts whose
            tokens are equal share computed prefixes only if this is equal too.
    """

    order: tuple[MediaKind, ...]
    input_features: Tensor | None
    feature_attention_mask: Tensor | None
    pixel_values: Tensor | None
    image_grid_thw: Tensor | None
    pixel_values_videos: Tensor | None
    video_grid_thw: Tensor | None
    video_second_per_grid: Tensor | None
    video_has_sound: tuple[bool, ...]
    content_hash: str

    def clips(self) -> Iterator[Tensor]:
        """[mel bins, frames] float32 of each clip, without padding."""
        if self.input_features is not None and self.feature_attention_mask is not None:
            for features, mask in zip(self.input_features, self.feature_attention_mask, strict=True):
                yield features[:, : int(mask.sum())]

    def clip_frames(self) -> list[int]:
        """Columns of each clip's spectrogram."""
        mask = self.feature_attention_mask
        return [] if mask is None else [int(count) for count in mask.sum(dim=1)]

    def image_grids(self) -> list[Grid]:
        """Patches of each picture along time, height and width."""
        return _grids(self.image_grid_thw)

    def video_grids(self) -> list[Grid]:
        """Patches of each video along time, height and width."""
        return _grids(self.video_grid_thw)

    def seconds_per_step(self) -> list[float]:
        """Of each video, along its grid's first axis."""
        return [] if self.video_second_per_grid is None else [float(each) for each in self.video_second_per_grid]

    def places(self) -> Media:
        """What positions in the prompt depend on."""
        videos = zip(self.video_grids(), self.seconds_per_step(), strict=True)
        return Media(tuple(self.image_grids()), tuple(Video(grid, seconds) for grid, seconds in videos))


def _grids(rows: Tensor | None) -> list[Grid]:
    return [] if rows is None else [(int(time), int(tall), int(wide)) for time, tall, wide in rows]
