"""Talkers stored in, and computed in, each element type, from one file and from shards: every row as in float32.

What is allowed is eight roundings of the type: errors of that many one behind the other, if none cancels another. The
networks have more, most of which cancel. Only what comes before the first choice is compared: narrow numbers may choose
another of two near codes, after which they speak of something else.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from omnistage.ar.draw import Choice, make_choices
from omnistage.contracts import SpeechOptions
from omnistage_talker.engine.frames import FrameConfig, FrameEngine
from omnistage_talker.models.qwen3.replay import Replay, greedy, run_requests
from omnistage_talker.models.qwen3.request import FrameRequest
from omnistage_talker.models.qwen3_tts.checkpoint import load_talker
from omnistage_talker.models.qwen3_tts.model import Qwen3TTS
from omnistage_talker.models.qwen3_tts.prompt import Manner
from omnistage_talker.models.qwen3_tts.replay import make_prompt
from omnistage_talker.models.qwen3_tts.talker import Talker

ROUNDING = {"bfloat16": 2.0**-8, "float16": 2.0**-11}
ROUNDINGS = 8
NARROW = list(ROUNDING)
MANNER = Manner((273, 263, 10), language="english", speaker="ryan", non_streaming=True)
TEXT = list(range(40, 70))

MakeStored = Callable[[str, int], Path]


@pytest.fixture(name="make_stored")
def _make_stored(made: dict[str, Path], tmp_path: Path) -> MakeStored:
    """A checkpoint with weights rounded to an element type and stored in it, in so many files."""

    def make(dtype: str, shards: int) -> Path:
        folder = tmp_path / f"{dtype}-{shards}"
        shutil.copytree(made["custom_voice"], folder)
        file = folder / "model.safetensors"
        tensors = {name: tensor.to(getattr(torch, dtype)) for name, tensor in load_file(file).items()}
        if shards == 1:
            save_file(tensors, file)
            return folder
        file.unlink()
        where = {
            name: f"model-{index % shards + 1:05}-of-{shards:05}.safetensors" for index, name in enumerate(tensors)
        }
        for part in set(where.values()):
            save_file({name: tensors[name] for name in tensors if where[name] == part}, folder / part)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
        return folder

    return make


def _replay(talker: Talker, frames: int = 1) -> Replay:
    prompt = make_prompt(talker, MANNER, TEXT)
    assert prompt.prefill is not None
    return run_requests(talker, [FrameRequest(prompt.prefill, prompt.later, greedy(1.05))], frames)[0]


def _residual(talker: Talker, hidden: Tensor, first: Tensor) -> Tensor:
    """The predictor's logits of group 1, from what the talker in float32 gave."""
    logits: list[Tensor] = []
    dtype = talker.embeddings.dtype
    choices = make_choices([Choice(temperature=0.0)], [0], hidden.device)
    with torch.inference_mode():
        talker.predictor.complete(hidden[None].to(dtype), first[None].to(dtype), choices, logits=logits)
    return logits[0][0]


def _apart(found: Tensor, expected: Tensor) -> float:
    assert found.shape == expected.shape
    return float(torch.linalg.vector_norm(found.float() - expected) / torch.linalg.vector_norm(expected))


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_types_come_close(made: dict[str, Path], make_stored: MakeStored, dtype: str, shards: int) -> None:
    exact = load_talker(made["custom_voice"], length=256)
    narrow = load_talker(make_stored(dtype, shards), dtype=dtype, length=256)
    assert narrow.embeddings.dtype == getattr(torch, dtype)
    (found,), (expected,) = _replay(narrow).numbers, _replay(exact).numbers
    allowed = ROUNDINGS * ROUNDING[dtype]
    assert 0.0 < _apart(found.embeds, expected.embeds) <= allowed
    assert 0.0 < _apart(found.hidden, expected.hidden) <= allowed
    assert found.logits.dtype == torch.float32, "choices are made in float32"
    assert 0.0 < _apart(found.logits, expected.logits) <= allowed
    first = exact.codec_embeddings.codec(torch.tensor([7]))[0]
    close, residual = _residual(narrow, expected.hidden, first), _residual(exact, expected.hidden, first)
    assert close.dtype == torch.float32
    assert 0.0 < _apart(close, residual) <= allowed


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("dtype", NARROW)
def test_what_is_stored_narrow_is_computed_in_float32_as_the_same_values_stored_wide(
    make_stored: MakeStored, tmp_path: Path, dtype: str, shards: int
) -> None:
    stored = make_stored(dtype, shards)
    wide = tmp_path / "wide"
    shutil.copytree(make_stored(dtype, 5), wide)
    for path in wide.glob("*.safetensors"):
        save_file({name: tensor.float() for name, tensor in load_file(path).items()}, path)
    found, same = (_replay(load_talker(folder, length=256), 8) for folder in (stored, wide))
    assert torch.equal(found.codes, same.codes)
    assert torch.allclose(found.numbers[0].logits, same.numbers[0].logits, atol=1e-4)


async def _text() -> AsyncIterator[str]:
    yield "One two three, and more of it than that."


@pytest.mark.parametrize("dtype", NARROW)
async def test_the_engine_draws_frames_in_narrow_types(make_stored: MakeStored, dtype: str) -> None:
    engine = FrameEngine(
        Qwen3TTS(make_stored(dtype, 1), dtype=dtype, context=256), FrameConfig(slots=2, kv_tokens=512, guard=None)
    )
    heard = []
    for seed in (1, 1, 2):
        async with aclosing(engine.speak(_text(), SpeechOptions(voice="ryan", seed=seed, max_frames=12))) as chunks:
            heard.append(np.concatenate([chunk.frames async for chunk in chunks]))
    await engine.close()
    for frames in heard:
        assert frames.shape == (12, 16)
        assert 0 <= frames.min() <= frames.max() < 2048
    assert np.array_equal(heard[0], heard[1])
    assert not np.array_equal(heard[0], heard[2])
