"""Compares the talker with recorded numbers of the reference implementation, part by part.

Files with `talker_prefill_embeds` hold a request: what the thinker made of it, which is taken as it was recorded, and
what the talker made of that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from omnistage.ar.qwen3.config import read_json
from omnistage.ar.qwen3.positions import Media
from omnistage.parity import Comparison, Tolerance, compare
from omnistage.parity.folders import FIXTURES
from omnistage_talker.models.qwen3.replay import PENALTIES, TRACED, Replay, check_numbers, greedy, run_requests
from omnistage_talker.models.qwen3_omni.config import OmniTalkerConfig
from omnistage_talker.models.qwen3_omni.prompt import Heard, Prompt
from omnistage_talker.models.qwen3_omni.talker import OmniTalker, load_talker

CHECKPOINT = "model"
_REQUEST = "talker_prefill_embeds"
_THINKER_EMBEDDING = "thinker.model.embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class Fixture:
    """A recorded request.

    Attributes:
        name: of the file.
        tensors: what was recorded.
        speaker: who speaks.
        max_frames: complete frames at which the recording stopped; the first code of one more was recorded.
        marks: the thinker's embeddings of the three tokens of speech.
    """

    name: str
    tensors: Mapping[str, Tensor]
    speaker: str
    max_frames: int
    marks: Tensor

    def heard(self) -> Heard:
        """The thinker's prompt."""
        ids: list[int] = self.tensors["input_ids"].tolist()
        grids: list[list[int]] = self.tensors["image_grid_thw"].tolist() if "image_grid_thw" in self.tensors else []
        return Heard(
            ids=ids,
            embeds=self.tensors["thinker_embeds"][: len(ids)],
            accepted=self.tensors["thinker_accept_hidden"][: len(ids)],
            marks=self.marks,
            media=Media(images=[(time, height, width) for time, height, width in grids]),
        )

    def words(self) -> Tensor:
        """[n, thinker_width] of the thinker's answer."""
        return self.tensors["thinker_embeds"][len(self.tensors["input_ids"]) :]


def read_fixtures(folder: Path, config: OmniTalkerConfig) -> list[Fixture]:
    """The recorded requests of a family folder."""
    meta = read_json(folder / FIXTURES / "meta.json")
    ids = [config.text.tts_bos, config.text.tts_eos, config.text.tts_pad]
    with safe_open(str(folder / CHECKPOINT / "model.safetensors"), "pt") as file:
        marks = file.get_tensor(_THINKER_EMBEDDING)[ids].float()
    fixtures = []
    for path in _requests(folder):
        about = meta[path.name]
        # A frame's other codes are computed in the step after its first one there, so the last is never complete.
        frames = int(about["talker_max_new_tokens"]) - 1
        fixtures.append(Fixture(path.stem, load_file(path), about["speaker"], frames, marks))
    return fixtures


def check(folder: Path) -> Iterator[Comparison]:
    """Compare every recorded request in a folder of the golden layout. Raises ConfigError for a broken checkpoint."""
    if not _requests(folder):
        return
    talker = load_talker(folder / CHECKPOINT)
    for fixture in read_fixtures(folder, talker.config):
        for row in check_fixture(talker, fixture):
            yield replace(row, part=f"{fixture.name}: {row.part}")


def _requests(folder: Path) -> list[Path]:
    found = []
    for path in sorted((folder / FIXTURES).glob("*.safetensors")):
        with safe_open(str(path), "pt") as file:
            if _REQUEST in file.keys():  # noqa: SIM118 - no mapping
                found.append(path)
    return found


def make_prompt(talker: OmniTalker, fixture: Fixture) -> Prompt:
    """A prompt whose text is complete."""
    prompt = Prompt(talker, fixture.heard(), fixture.speaker)
    prompt.add(fixture.words())
    prompt.finish()
    return prompt


def check_fixture(talker: OmniTalker, fixture: Fixture) -> Iterator[Comparison]:
    """Prompt, positions, logits and hidden states of the first steps, codes of all groups."""
    recorded, prompt = fixture.tensors, make_prompt(talker, fixture)
    assert prompt.prefill is not None
    yield compare("talker_prefill_ids", prompt.ids, recorded["talker_prefill_ids"], Tolerance.CODES)
    yield compare("talker_prefill_embeds", prompt.prefill, recorded["talker_prefill_embeds"], Tolerance.EMBEDDINGS)
    expected = recorded["talker_position_ids_prefill"]
    yield compare("talker_position_ids_prefill", prompt.positions, expected, Tolerance.CODES)
    decode = recorded["talker_position_ids_decode"]
    later = (torch.arange(decode.shape[1]) + prompt.next_position).expand(3, -1)
    yield compare("talker_position_ids_decode", later, decode, Tolerance.CODES)
    rows = torch.stack([prompt.later.row(index) for index in range(len(prompt.later))])
    yield compare("trailing_text_hidden", rows, recorded["trailing_text_hidden"], Tolerance.EMBEDDINGS)
    yield compare("tts_pad_embed", prompt.tts_pad, recorded["tts_pad_embed"], Tolerance.EMBEDDINGS)
    for tag, penalty in PENALTIES.items():
        result = run(talker, prompt, penalty, fixture.max_frames)
        found = result.codes[:, : fixture.max_frames]
        yield compare(f"codes_{tag}", found, recorded[f"codes_{tag}"], Tolerance.CODES)
        if tag == TRACED:
            yield from check_numbers(recorded, result)


def run(talker: OmniTalker, prompt: Prompt, penalty: float, max_frames: int) -> Replay:
    """Frames of a prompt, greedily, and the first code of one more."""
    (result,) = run_requests(talker, [prompt.request(greedy(penalty, min_frames=0))], max_frames + 1)
    return result
