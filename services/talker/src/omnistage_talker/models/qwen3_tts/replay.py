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

from omnistage_talker.models.qwen3.replay import Replay, run_requests
from omnistage_talker.models.qwen3.request import FrameRequest, FrameSampling
from omnistage_talker.models.qwen3_tts.prompt import Manner, Prompt
from omnistage_talker.models.qwen3_tts.talker import Talker

ROLE, TURN_END, REF_END = 3, 5, 2
"""Tokens around the text: the turn's opening before it, and behind it the end of the turn, with or without the opening
of the next one."""


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
    requests = []
    for prompt in prompts:
        prefill = _prefill(prompt)
        if position_offset:
            prefill = torch.cat((prefill.new_zeros(position_offset, prefill.shape[1]), prefill))
        requests.append(FrameRequest(prefill, prompt.later, sampling))
    return run_requests(talker, requests, max_frames)


def _prefill(prompt: Prompt) -> Tensor:
    assert prompt.prefill is not None, "the prompt's text is not complete"
    return prompt.prefill
