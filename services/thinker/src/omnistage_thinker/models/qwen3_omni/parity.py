"""Compares the thinker with recorded numbers of the reference implementation, part by part.

Files with `thinker_step_logits` hold a request: token ids, media as the processor prepared them, and what came of them.
One that has both kinds of media takes their contents from the files `audio` and `image`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from omnistage.ar.qwen3.config import read_json
from omnistage.ar.qwen3.positions import Grid, Media
from omnistage.parity import Comparison, Tolerance, compare
from omnistage.parity.folders import FIXTURES
from omnistage_thinker.models.qwen3_omni.checkpoint import load_thinker
from omnistage_thinker.models.qwen3_omni.mel import LogMel
from omnistage_thinker.models.qwen3_omni.prompt import Prompt, Towers, make_prompt
from omnistage_thinker.models.qwen3_omni.replay import Replay, run_prompts
from omnistage_thinker.models.qwen3_omni.thinker import Thinker
from omnistage_thinker.models.qwen3_omni.vision_tower import Seen

Recorded = Mapping[str, Tensor]

CHECKPOINT = "model"
_AUDIO, _IMAGE = "audio", "image"
_REQUEST = "thinker_step_logits"


@dataclass(frozen=True, slots=True)
class Fixture:
    """A recorded request.

    Attributes:
        name: of the file.
        tensors: what was recorded.
        media: those of its own, or those of the files that its media are taken from.
        max_new_tokens: of the thinker.
    """

    name: str
    tensors: Recorded
    media: Recorded
    max_new_tokens: int

    @property
    def ids(self) -> list[int]:
        """Tokens of the prompt."""
        ids: list[int] = self.tensors["input_ids"].tolist()
        return ids

    @property
    def grids(self) -> list[Grid]:
        rows: list[list[int]] = self.tensors["image_grid_thw"].tolist() if "image_grid_thw" in self.tensors else []
        return [(time, height, width) for time, height, width in rows]


def read_fixtures(folder: Path) -> list[Fixture]:
    """The recorded requests of a family folder."""
    files = {path.stem: load_file(path) for path in sorted((folder / FIXTURES).glob("*.safetensors"))}
    requests = {name: tensors for name, tensors in files.items() if _REQUEST in tensors}
    if not requests:
        return []
    meta = read_json(folder / FIXTURES / "meta.json")
    prepared = {**requests.get(_AUDIO, {}), **requests.get(_IMAGE, {})}
    return [
        Fixture(name, tensors, prepared, int(meta[f"{name}.safetensors"]["thinker_max_new_tokens"]))
        for name, tensors in requests.items()
    ]


def check(folder: Path) -> Iterator[Comparison]:
    """Compare every recorded request in a folder of the golden layout. Raises ConfigError for a broken checkpoint."""
    fixtures = read_fixtures(folder)
    if not fixtures:
        return
    thinker = load_thinker(folder / CHECKPOINT)
    stop = int(read_json(folder / CHECKPOINT / "generation_config.json")["eos_token_id"])
    for fixture in fixtures:
        for row in check_fixture(thinker, fixture, stop):
            yield Comparison(part=f"{fixture.name}: {row.part}", shape=row.shape, error=row.error, allowed=row.allowed)


@torch.inference_mode()
def run_towers(thinker: Thinker, fixture: Fixture) -> Towers:
    """What the towers make of a request's media."""
    ids, media = fixture.ids, fixture.media
    audio: Tensor | None = None
    images: Seen | None = None
    if thinker.config.ids.audio in ids:
        audio = thinker.audio_tower(media["input_features"][0])
    if thinker.config.ids.image in ids:
        images = thinker.vision_tower(media["pixel_values"], fixture.grids)
    return Towers(audio, images)


def recorded_prompt(thinker: Thinker, fixture: Fixture, towers: Towers) -> Prompt:
    """The prompt of a request."""
    with torch.inference_mode():
        return make_prompt(thinker, fixture.ids, Media(images=fixture.grids), towers)


def check_fixture(thinker: Thinker, fixture: Fixture, stop: int) -> Iterator[Comparison]:
    """Media, prompt, and the answer with its numbers."""
    towers = run_towers(thinker, fixture)
    yield from _check_media(thinker, fixture, towers)
    prompt = recorded_prompt(thinker, fixture, towers)
    recorded = fixture.tensors
    expected = recorded["thinker_position_ids_prefill"]
    yield compare("thinker_position_ids_prefill", prompt.positions, expected, Tolerance.CODES)
    decode = recorded["thinker_position_ids_decode"]
    later = (torch.arange(decode.shape[1]) + prompt.next_position).expand(3, -1)
    yield compare("thinker_position_ids_decode", later, decode, Tolerance.CODES)
    (result,) = run_prompts(thinker, [(fixture.ids, prompt)], max_new_tokens=fixture.max_new_tokens, stop=stop)
    yield from _check_answer(recorded, result)


def _check_media(thinker: Thinker, fixture: Fixture, towers: Towers) -> Iterator[Comparison]:
    recorded = fixture.tensors
    if "audio_waveform_16k" in recorded:
        log_mel = LogMel(thinker.config.audio.mel_bins)(recorded["audio_waveform_16k"])
        yield compare("input_features", log_mel, recorded["input_features"][0], Tolerance.LOG_MEL)
    if towers.audio is not None and "audio_tower_output" in recorded:
        yield compare("audio_tower_output", towers.audio, recorded["audio_tower_output"], Tolerance.HIDDEN_STATES)
    if towers.images is not None and "vision_output" in recorded:
        yield compare("vision_output", towers.images.embeds, recorded["vision_output"], Tolerance.HIDDEN_STATES)
        for index, deep in enumerate(towers.images.deep):
            name = f"vision_deepstack_{index}"
            yield compare(name, deep, recorded[name], Tolerance.HIDDEN_STATES)


def _check_answer(recorded: Recorded, result: Replay) -> Iterator[Comparison]:
    yield compare("thinker_sequence", result.tokens, recorded["thinker_sequence"], Tolerance.CODES)
    yield compare("thinker_embeds", result.embeds, recorded["thinker_embeds"], Tolerance.EMBEDDINGS)
    accepted = recorded["thinker_accept_hidden"]
    yield compare("thinker_accept_hidden", result.accepted, accepted, Tolerance.HIDDEN_STATES)
    first = result.numbers[0]
    yield compare("thinker_last_prompt_logits", first.logits, recorded["thinker_last_prompt_logits"], Tolerance.LOGITS)
    final = recorded["thinker_prompt_final_hidden_last"]
    yield compare("thinker_prompt_final_hidden_last", first.hidden, final, Tolerance.HIDDEN_STATES)
    logits = torch.stack([step.logits for step in result.numbers])
    yield compare("thinker_step_logits", logits, recorded["thinker_step_logits"], Tolerance.LOGITS)
