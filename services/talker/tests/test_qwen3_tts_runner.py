"""The runner: other element types, chunks of any size, and numbers that are not finite."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

import pytest
import torch

from omnistage.ar.blocks import BlockManager
from omnistage.ar.draw import Choice
from omnistage.ar.kv_cache import PagedKVCache
from omnistage.ar.runner import Emitted
from omnistage.ar.scheduler import Scheduler, SchedulerConfig
from omnistage.ar.sequence import Sequence
from omnistage_talker.models.qwen3.replay import greedy
from omnistage_talker.models.qwen3.request import FrameRequest, FrameSampling
from omnistage_talker.models.qwen3.runner import FrameRunner
from omnistage_talker.models.qwen3_tts.checkpoint import load_talker
from omnistage_talker.models.qwen3_tts.prompt import Manner
from omnistage_talker.models.qwen3_tts.replay import make_prompt
from omnistage_talker.models.qwen3_tts.talker import Talker

BLOCKS = 32
MANNER = Manner((273, 263, 10), language="english", speaker="ryan", non_streaming=True)
TEXT = list(range(40, 70))


def _request(talker: Talker, text: Seq[int] = TEXT, sampling: FrameSampling | None = None) -> FrameRequest:
    prompt = make_prompt(talker, MANNER, text)
    assert prompt.prefill is not None
    return FrameRequest(prompt.prefill, prompt.later, sampling or greedy(1.05))


def _sequence(name: str, request: FrameRequest, frames: int = 6) -> Sequence:
    length = len(request.prefill)
    return Sequence(name, [0] * length, length, frames, frozenset({(2150,)}), cache_salt=None, payload=request)


class Rig:
    """A runner and its scheduler."""

    def __init__(self, talker: Talker, chunk: int = 512) -> None:
        embeddings = talker.embeddings
        cache = PagedKVCache(talker.cache_shape(BLOCKS, 16), dtype=embeddings.dtype, device=str(embeddings.device))
        self.runner = FrameRunner(talker, cache)
        self.scheduler = Scheduler(SchedulerConfig(8, chunk, chunk, 256), BlockManager(BLOCKS, 16, prefix_cache=False))

    def step(self) -> list[Emitted]:
        batch = self.scheduler.schedule()
        emitted = self.runner.step(batch)
        self.scheduler.commit(batch, [item.token for item in emitted])
        return emitted

    def run(self, *sequences: Sequence) -> list[list[object]]:
        for sequence in sequences:
            self.scheduler.add(sequence)
        while self.scheduler.running or self.scheduler.waiting:
            self.step()
        return [list(sequence.tokens[sequence.num_prompt :]) for sequence in sequences]


@pytest.fixture(scope="module", name="talker")
def _talker(made: dict[str, Path]) -> Talker:
    return load_talker(made["custom_voice"], length=256)


@pytest.mark.parametrize("chunk", [1, 3, 16, 17])
def test_frames_do_not_depend_on_how_the_prompt_is_cut(talker: Talker, chunk: int) -> None:
    whole = Rig(talker).run(_sequence("a", _request(talker)))
    assert len(whole[0]) == 6
    assert Rig(talker, chunk).run(_sequence("a", _request(talker))) == whole


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_other_element_types_give_frames_near_those_of_float32(
    made: dict[str, Path], talker: Talker, dtype: str
) -> None:
    narrow = load_talker(made["custom_voice"], dtype=dtype, length=256)
    assert narrow.embeddings.dtype == getattr(torch, dtype)
    (frames,) = Rig(narrow).run(_sequence("a", _request(narrow)))
    assert [len(frame) for frame in frames if isinstance(frame, tuple)] == [16] * 6
    exact, close = _request(talker).prefill, _request(narrow).prefill
    assert torch.allclose(close.float(), exact, atol=0.1, rtol=0.05)


def test_a_row_that_is_not_finite_fails_alone(talker: Talker) -> None:
    alone = Rig(talker).run(_sequence("good", _request(talker)))
    rig = Rig(talker)
    broken = _request(talker)
    broken.prefill = broken.prefill.clone()
    broken.prefill[3, 0] = torch.nan
    good, bad = _sequence("good", _request(talker)), _sequence("bad", broken)
    rig.scheduler.add(bad)
    rig.scheduler.add(good)
    emitted = rig.step()
    assert [item.failure is None for item in emitted] == [False, True]
    rig.scheduler.remove(bad)
    while rig.scheduler.running:
        rig.step()
    assert list(good.tokens[good.num_prompt :]) == alone[0]


def test_only_codes_and_the_end_are_chosen_and_no_end_before_its_time(made: dict[str, Path]) -> None:
    ending = load_talker(made["ending"], length=256)
    lengths = set()
    for seed in range(12):
        drawn = Choice(temperature=0.9, top_k=50, seed=seed)
        sampling = FrameSampling(drawn, drawn, min_frames=5)
        (frames,) = Rig(ending).run(_sequence("a", _request(ending, sampling=sampling), frames=40))
        lengths.add(len(frames))
        for frame in frames[:-1]:
            assert isinstance(frame, tuple)
            assert len(frame) == 16
            assert max(frame) < 2048
        assert frames[-1] == (2150,) or len(frames) == 40
    assert min(lengths) > 5
    assert min(lengths) < 40


def test_the_penalty_is_over_the_first_codes_of_the_answer_alone(talker: Talker) -> None:
    """With a penalty that forbids, no first code comes twice; other groups and the prompt do not count."""
    (frames,) = Rig(talker).run(_sequence("a", _request(talker, sampling=greedy(1e9)), frames=40))
    first = [frame[0] for frame in frames if isinstance(frame, tuple)]
    assert len(set(first)) == len(first) == 40
    (plain,) = Rig(talker).run(_sequence("a", _request(talker, sampling=greedy(1.0)), frames=40))
    repeated = [frame[0] for frame in plain if isinstance(frame, tuple)]
    assert len(set(repeated)) < 40
    assert plain[0] == frames[0]
