"""Runs recorded requests again, the way the reference implementation recorded them, and keeps the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omnistage.ar.blocks import BlockManager
from omnistage.ar.kv_cache import PagedKVCache
from omnistage.ar.sampling import SamplingParams
from omnistage.ar.scheduler import Scheduler, SchedulerConfig
from omnistage.ar.sequence import Sequence as ARSequence
from omnistage_thinker.models.qwen3_omni.prompt import Prompt
from omnistage_thinker.models.qwen3_omni.runner import SpokenRows, ThinkerRequest, ThinkerRunner, Trace, Traced
from omnistage_thinker.models.qwen3_omni.thinker import Thinker

_BLOCK = 16


@dataclass(frozen=True, slots=True)
class Replay:
    """What one prompt gave.

    Attributes:
        tokens: of prompt and answer.
        embeds, accepted: [tokens - 1, width], what the talker gets; the last token is never fed.
        numbers: behind each token of the answer.
    """

    tokens: list[int]
    embeds: Tensor
    accepted: Tensor
    numbers: list[Traced]


def run_prompts(
    thinker: Thinker,
    prompts: Sequence[tuple[Sequence[int], Prompt]],
    *,
    max_new_tokens: int,
    stop: int,
    chunk_tokens: int = 1024,
) -> list[Replay]:
    """Run prompts together, greedily, until each has ended.

    Args:
        thinker: the model.
        prompts: token ids, and what was made of them.
        max_new_tokens: ceiling of each answer.
        stop: the token that ends an answer.
        chunk_tokens: most tokens of a step.

    Returns:
        One result for each prompt, in order.
    """
    longest = max(len(ids) for ids, _ in prompts) + max_new_tokens + 1
    num_blocks = len(prompts) * -(-longest // _BLOCK) + 1
    scheduler = Scheduler(
        SchedulerConfig(len(prompts), chunk_tokens, chunk_tokens, longest),
        BlockManager(num_blocks, _BLOCK, prefix_cache=False),
    )
    trace: Trace = {}
    cache = PagedKVCache(thinker.cache_shape(num_blocks, _BLOCK), dtype=thinker.dtype, device=str(thinker.device))
    runner = ThinkerRunner(thinker, cache, trace=trace)
    requests = [ThinkerRequest(prompt, SamplingParams(temperature=0.0), SpokenRows()) for _, prompt in prompts]
    sequences = [
        ARSequence(
            str(index),
            list(ids),
            len(ids),
            max_new_tokens,
            frozenset({stop}),
            cache_salt=None,
            payload=request,
        )
        for index, ((ids, _), request) in enumerate(zip(prompts, requests, strict=True))
    ]
    for sequence in sequences:
        scheduler.add(sequence)
    while (batch := scheduler.schedule()).rows:
        scheduler.commit(batch, [item.token for item in runner.step(batch)])
    return [
        _result(sequence, request, trace[sequence.request_id])
        for sequence, request in zip(sequences, requests, strict=True)
    ]


def _result(sequence: ARSequence, request: ThinkerRequest, numbers: list[Traced]) -> Replay:
    spoken = request.spoken
    assert spoken is not None
    tokens = [int(str(token)) for token in sequence.tokens]
    return Replay(tokens, torch.cat(spoken.embeds), torch.cat(spoken.accepted), numbers)
