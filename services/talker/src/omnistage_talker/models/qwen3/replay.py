"""Runs requests on the AR core, greedily, and compares what came of them with recordings of a reference."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from omnistage.ar.blocks import BlockManager
from omnistage.ar.draw import Choice
from omnistage.ar.kv_cache import PagedKVCache
from omnistage.ar.scheduler import Scheduler, SchedulerConfig
from omnistage.ar.sequence import Sequence as ARSequence
from omnistage.parity import Comparison, Tolerance, compare
from omnistage_talker.models.qwen3.request import FrameRequest, FrameSampling
from omnistage_talker.models.qwen3.runner import FrameRunner, Trace, Traced
from omnistage_talker.models.qwen3.talker import FrameTalker

PENALTIES = {"rp105": 1.05, "rp100": 1.0}
"""Ending of a recording's name -> repetition penalty."""

TRACED = "rp105"
"""The one whose numbers were recorded."""

_BLOCK = 16
_FIRST = 3


def greedy(repetition_penalty: float, *, min_frames: int = 2) -> FrameSampling:
    """The likeliest code in every group."""
    choice = Choice(temperature=0.0)
    return FrameSampling(choice, choice, repetition_penalty, min_frames)


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


def run_requests(
    talker: FrameTalker, requests: Sequence[FrameRequest], max_frames: int, *, chunk_tokens: int = 1024
) -> list[Replay]:
    """Run requests together until each has ended.

    Args:
        talker: the model.
        requests: with complete text.
        max_frames: ceiling for each.
        chunk_tokens: most tokens of a step.

    Returns:
        One result for each request, in order.
    """
    longest = max(len(request.prefill) for request in requests) + max_frames + 1
    num_blocks = len(requests) * -(-longest // _BLOCK) + 1
    scheduler = Scheduler(
        SchedulerConfig(len(requests), chunk_tokens, chunk_tokens, longest),
        BlockManager(num_blocks, _BLOCK, prefix_cache=False),
    )
    trace: Trace = {}
    rows = talker.codec_embeddings
    cache = PagedKVCache(talker.cache_shape(num_blocks, _BLOCK), dtype=rows.dtype, device=str(rows.device))
    runner = FrameRunner(talker, cache, trace=trace)
    sequences = [
        ARSequence(
            str(index),
            [0] * len(request.prefill),
            len(request.prefill),
            max_frames,
            frozenset({(talker.frames.end,)}),
            cache_salt=None,
            payload=request,
        )
        for index, request in enumerate(requests)
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    while (batch := scheduler.schedule()).rows:
        scheduler.commit(batch, [item.token for item in runner.step(batch)])
    return [_result(sequence, talker.frames.num_groups, trace) for sequence in sequences]


def _result(sequence: ARSequence, groups: int, trace: Trace) -> Replay:
    emitted: list[Any] = sequence.tokens[sequence.num_prompt :]
    frames = [frame for frame in emitted if len(frame) > 1]
    codes = torch.tensor(frames, dtype=torch.int32).reshape(-1, groups).T
    return Replay(codes, [frame[0] for frame in emitted], trace[sequence.request_id])


def check_numbers(recorded: Mapping[str, Tensor], result: Replay) -> Iterator[Comparison]:
    """The numbers of the first decisions of one recorded request."""
    steps = result.numbers

    def row(name: str, found: list[Tensor], allowed: float) -> Comparison:
        return compare(name, torch.stack(found), recorded[name], allowed)

    yield compare("talker_tokens_rp105", result.tokens, recorded["talker_tokens_rp105"], Tolerance.CODES)
    yield row("talker_logits_first3", [step.logits for step in steps[:_FIRST]], Tolerance.LOGITS)
    yield row("talker_hidden_first3", [step.hidden for step in steps[:_FIRST]], Tolerance.HIDDEN_STATES)
    yield row("decode_input_embeds_first3", [step.embeds for step in steps[1 : 1 + _FIRST]], Tolerance.EMBEDDINGS)
    name = "code_predictor_logits_frame0"
    if name in recorded:
        yield row(name, list(steps[0].residual), Tolerance.LOGITS)
    else:
        places = recorded[f"{name}_topid"].long()
        yield row(f"{name}_top", list(steps[0].residual.gather(1, places)), Tolerance.LOGITS)
