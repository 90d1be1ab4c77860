"""Greedy answers equal transformers' token for token, alone and in mixed batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from omnistage_thinker.engine import TextEngine

pytestmark = [pytest.mark.model, pytest.mark.timeout(400)]

NEW_TOKENS = 32
PROMPTS = [
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain photosynthesis to a child in two sentences.",
    "List five fruits.",
    "Translate 'good morning' into Spanish.",
    "What is 12 + 30?",
    "Tell me a short story about a dragon who was afraid of fire.",
    "Write a Python function that reverses a string.",
    "Who wrote Romeo and Juliet?",
    "Give me three tips for sleeping better.",
    "Why is the sky blue?",
    "Hi!",
    "Summarize this: The meeting was moved from Monday to Thursday because two of the speakers were ill, and the room "
    "on the second floor was being painted. Everybody was told by mail, but some of the guests from abroad had already "
    "booked their trains and asked for the costs to be paid back.",
    "Describe the taste of coffee.",
    "What does the word 'naïve' mean?",
    "日本の首都はどこですか?",
    "Write an email to my landlord about a broken heater.",
    "Name the planets of the solar system in order.",
    "Is a tomato a fruit or a vegetable? 🍅",
    "Count from one to ten in words.",
]


@pytest.fixture(scope="module")
def expected(reference: Any) -> list[list[int]]:
    """transformers' answers without the end-of-answer token."""
    answers = [reference.greedy(prompt, NEW_TOKENS) for prompt in PROMPTS]
    return [[token for token in answer if token != reference.tokenizer.eos_token_id] for answer in answers]


async def test_alone(
    engine: TextEngine,
    expected: list[list[int]],
    reference: Any,
    make_work: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    for index, prompt in enumerate(PROMPTS):
        result = await read(engine, make_work(prompt, max_tokens=NEW_TOKENS))
        assert result.token_ids == expected[index], prompt
        assert result.text == reference.tokenizer.decode(expected[index], skip_special_tokens=True)
        assert result.summary.completion_tokens == len(expected[index])
        assert result.summary.finish_reason == ("length" if len(expected[index]) == NEW_TOKENS else "stop")


async def test_in_mixed_batches_of_eight_that_arrive_one_after_the_other(
    make_engine: Callable[..., TextEngine],
    expected: list[list[int]],
    make_work: Callable[..., Any],
    read: Callable[..., Any],
) -> None:
    engine = make_engine(slots=8, chunk_tokens=24)

    async def late(index: int) -> Any:
        await asyncio.sleep(0.06 * index)
        return await read(engine, make_work(PROMPTS[index], f"r{index}", max_tokens=NEW_TOKENS))

    results = await asyncio.gather(*(late(index) for index in range(len(PROMPTS))))
    assert [result.token_ids for result in results] == expected
    assert engine.facts()["batch_max"] == 8
