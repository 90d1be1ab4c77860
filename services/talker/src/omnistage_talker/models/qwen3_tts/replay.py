"""Runs recorded requests again, the way the reference implementation recorded them, and keeps the numbers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from omnistage.ar.blocks import BlockManager
from omnistage.ar.draw import Choice
from omnistage.ar.kv_cache import PagedKVCache
from omnistage.ar.scheduler import Scheduler, SchedulerConfig
from omnistage.ar.sequence import Sequence as ARSequence
from omnistage_talker.models.qwen3_tts.prompt import Manner, Prompt
from omnistage_talker.models.qwen3_tts.request import FrameRequest, FrameSampling
from omnistage_talker.models.qwen3_tts.runner import FrameRunner, Trace, Traced
from omnistage_talker.models.qwen3_tts.talker import Talker

ROLE, TURN_END, REF_END = 3, 5, 2
"""Tokens around the text: the turn's opening before it, and behind it the end of the turn, with or without the opening
of the next one."""

_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Fixture:
    """A recorded request.

    Attributes:
        name: file name without its ending, e.g. "base.xvector".
        tensors: what was recorded.
        request: text, speaker and so on.
        max_frames: complete frames at which the recording stopped; the first code of one more was recorded.
    """

    name: str
    tensors: dict[str, Tensor]
    request: dict[str, Any]
    max_frames: int

    def manner(self) -> Manner:
        """The recorded request's."""
        tensors, request = self.tensors, self.request
        codes = tensors.get("ref_codes")
        ids = tensors["input_ids"].tolist()
        return Manner(
            role_ids=tuple(ids[:ROLE]),
            instruct_ids=tuple(tensors["instruct_ids"].tolist()) if "instruct_ids" in tensors else (),
            language=request["language"],
            speaker=request.get("speaker"),
            embedding=tensors.get("speaker_embedding"),
            ref_ids=tuple(tensors["ref_ids"].tolist()[ROLE:-REF_END]) if codes is not None else (),
            ref_codes=codes.T.long() if codes is not None else None,
            non_streaming=request["non_streaming_mode"],
        )

    def text_ids(self) -> list[int]:
        """Tokens of the text alone."""
        ids: list[int] = self.tensors["input_ids"][ROLE:-TURN_END].tolist()
        return ids


def read_fixtures(folder: Path, checkpoint: str) -> Iterator[Fixture]:
    """The recorded requests of a checkpoint: files `CHECKPOINT.*.safetensors` with token ids or several rows."""
    meta: dict[str, Any] = json.loads((folder / f"meta.{checkpoint}.json").read_text(encoding="utf-8"))
    for name, about in meta.items():
        path = folder / name
        if path.exists() and "max_new_tokens" in about:
            # A frame's other codes are computed in the step after its first one there, so the last is never complete.
            yield Fixture(path.stem, load_file(path), about["request"], about["max_new_tokens"] - 1)


def make_prompt(talker: Talker, manner: Manner, text_ids: Sequence[int]) -> Prompt:
    """A prompt whose text is complete."""
    prompt = Prompt(talker.embeddings, talker.config, manner)
    prompt.add(list(text_ids))
    prompt.finish()
    return prompt


def greedy(repetition_penalty: float) -> FrameSampling:
    """The likeliest code in every group."""
    choice = Choice(temperature=0.0)
    return FrameSampling(choice, choice, repetition_penalty)


@dataclass(frozen=True, slots=True)
class Replay:
    """What one prompt gave.

    Attributes:
        codes: [groups, frames] int32, without the end.
        tokens: group 0, with the end if it came.
        numbers: behind each of `tokens`.
    """

    codes: Tensor
    tokens: list[int]
    numbers: list[Traced]


def run_frames(
    talker: Talker, prompts: Sequence[Prompt], sampling: FrameSampling, max_frames: int, *, position_offset: int = 0
) -> list[Replay]:
    """Run prompts together until each has ended.

    Args:
        talker: the model.
        prompts: complete ones.
        sampling: for all.
        max_frames: ceiling for each.
        position_offset: rows of zeros before each prompt; anything but 0 moves its positions (to show that they count).

    Returns:
        One result for each prompt, in order.
    """
    longest = position_offset + max(len(_prefill(prompt)) for prompt in prompts) + max_frames + 1
    num_blocks = len(prompts) * -(-longest // _BLOCK) + 1
    scheduler = Scheduler(
        SchedulerConfig(len(prompts), 1024, 1024, longest), BlockManager(num_blocks, _BLOCK, prefix_cache=False)
    )
    trace: Trace = {}
    runner = FrameRunner(talker, PagedKVCache(talker.cache_shape(num_blocks, _BLOCK)), trace=trace)
    sequences = []
    for index, prompt in enumerate(prompts):
        prefill = _prefill(prompt)
        if position_offset:
            prefill = torch.cat((prefill.new_zeros(position_offset, prefill.shape[1]), prefill))
        sequence = ARSequence(
            str(index),
            [0] * len(prefill),
            len(prefill),
            max_frames,
            frozenset({(talker.config.codec.eos,)}),
            cache_salt=None,
            payload=FrameRequest(prefill, prompt.later, sampling),
        )
        sequences.append(sequence)
        scheduler.add(sequence)
    while (batch := scheduler.schedule()).rows:
        scheduler.commit(batch, [item.token for item in runner.step(batch)])
    return [_result(sequence, talker.config.num_groups, trace) for sequence in sequences]


def _prefill(prompt: Prompt) -> Tensor:
    assert prompt.prefill is not None, "the prompt's text is not complete"
    return prompt.prefill


def _result(sequence: ARSequence, groups: int, trace: Trace) -> Replay:
    emitted: list[Any] = sequence.tokens[sequence.num_prompt :]
    frames = [frame for frame in emitted if len(frame) > 1]
    codes = torch.tensor(frames, dtype=torch.int32).reshape(-1, groups).T
    return Replay(codes, [frame[0] for frame in emitted], trace[sequence.request_id])
