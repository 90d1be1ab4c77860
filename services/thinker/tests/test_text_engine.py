"""The text engine on the packaged model: sampling, limits, stops, resumption, and bits that no batch changes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from omnistage.contracts import ChatMessage, GenerateText, Sampling
from omnistage.errors import Cancelled, ConfigError, InvalidRequest, Unavailable
from omnistage.pacing import Pacer
from omnistage_thinker.engine import TextEngine

pytestmark = pytest.mark.model

Work = Callable[..., GenerateText]
Read = Callable[..., Any]
Make = Callable[..., TextEngine]

STORY = "Tell me a story about a dog and a cat."
LONG = "The meeting was moved from Monday to Thursday because two of the speakers were ill. " * 9


def numbers(result: Any) -> list[tuple[Any, ...]]:
    """Tokens with their exact log-probabilities and those of five alternatives, flattened."""
    entries = [entry for piece in result.pieces for entry in piece.logprobs]
    return [(entry.data, entry.logprob, tuple((other.data, other.logprob) for other in entry.top)) for entry in entries]


def sampled(make_work: Work, text: str, name: str, seed: int, count: int = 8) -> GenerateText:
    return make_work(text, name, temperature=0.9, top_p=0.95, seed=seed, max_tokens=count, logprobs=5)


async def test_a_request_has_the_same_bits_alone_in_a_batch_and_in_chunks(
    make_engine: Make, make_work: Work, read: Read
) -> None:
    texts = [STORY, LONG, "Hi", "Why is the sky blue?", LONG[::-1], "1 2 3", STORY * 9, "Name a colour."]
    alone = []
    engine = make_engine(prefix_cache=False)
    for index, text in enumerate(texts):
        alone.append(numbers(await read(engine, sampled(make_work, text, f"r{index}", index))))
    assert all(len(entries) > 1 for entries in alone)
    for settings in ({"chunk_tokens": 24, "prefill_tokens": 56}, {"chunk_tokens": 7, "prefill_tokens": 300}):
        engine = make_engine(**settings)
        requests = [sampled(make_work, text, f"r{index}", index) for index, text in enumerate(texts)]
        together = await asyncio.gather(*(read(engine, request) for request in requests))
        assert [numbers(result) for result in together] == alone


async def test_seeds_decide(engine: TextEngine, make_work: Work, read: Read) -> None:
    texts: dict[int, str] = {}
    for seed in (1, 2, 1, 2**63):
        result = await read(engine, make_work(STORY, temperature=1.0, seed=seed))
        assert texts.setdefault(seed, result.text) == result.text
    assert len(set(texts.values())) == 3


async def test_preemption_in_a_tiny_cache_changes_nothing(make_engine: Make, make_work: Work, read: Read) -> None:
    requests = [sampled(make_work, f"{STORY} Number {index}.", f"r{index}", index, 24) for index in range(4)]
    roomy, tiny = make_engine(), make_engine(kv_tokens=160, context=128)
    whole = [numbers(await read(roomy, request)) for request in requests]
    squeezed = await asyncio.gather(*(read(tiny, request) for request in requests))
    assert tiny.facts()["preemptions"] > 0
    assert [numbers(result) for result in squeezed] == whole
    assert tiny.facts()["kv_use"] == 0.0


async def test_a_prefix_hit_changes_nothing_and_is_counted(engine: TextEngine, make_work: Work, read: Read) -> None:
    first, second = [await read(engine, sampled(make_work, LONG, "r", 3)) for _ in range(2)]
    assert numbers(first) == numbers(second)
    prompt = first.summary.prompt_tokens
    assert first.summary.cached_tokens == 0
    assert second.summary.cached_tokens == (prompt - 1) // 16 * 16


@pytest.mark.parametrize("sent", [1, 7])
async def test_a_resumed_answer_goes_on_with_the_same_bits(
    engine: TextEngine, make_engine: Make, make_work: Work, read: Read, sent: int
) -> None:
    request = make_work(STORY, temperature=1.0, seed=5, max_tokens=12, logprobs=3, stop=("qqq",), frequency_penalty=0.4)
    whole = await read(engine, request)
    known = whole.pieces[:sent]
    emitted = tuple(token for piece in known for token in piece.token_ids)
    chars = sum(len(piece.text) for piece in known)
    resumed = await read(make_engine(), request, emitted=emitted, emitted_chars=chars)
    assert resumed.pieces == whole.pieces[sent:]
    assert resumed.summary.completion_tokens == whole.summary.completion_tokens
    assert resumed.summary.finish_reason == whole.summary.finish_reason


async def test_resuming_a_complete_answer_only_ends_it(engine: TextEngine, make_work: Work, read: Read) -> None:
    request = make_work("What is the capital of France?", max_tokens=4)
    whole = await read(engine, request)
    again = await read(engine, request, emitted=tuple(whole.token_ids), emitted_chars=len(whole.text))
    assert again.text == ""
    assert again.summary.finish_reason == whole.summary.finish_reason == "length"
    assert again.summary.completion_tokens == 4
    for stop in ("Paris", ".!"):
        stopped = make_work("What is the capital of France?", stop=(stop,))
        answer = await read(engine, stopped)
        again = await read(engine, stopped, emitted=tuple(answer.token_ids), emitted_chars=len(answer.text))
        assert (again.pieces, again.summary.finish_reason) == ([], "stop")


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        ((), "The capital of France is Paris."),
        (("Paris",), "The capital of France is "),
        (("tal of Fr",), "The capi"),
        (("nothing", " is"), "The capital of France"),
        (("The",), ""),
        (("Paris.",), "The capital of France is "),
        (("Paris!",), "The capital of France is Paris."),
    ],
)
async def test_stop_strings_end_the_answer(
    engine: TextEngine, make_work: Work, read: Read, stop: tuple[str, ...], text: str
) -> None:
    result = await read(engine, make_work("What is the capital of France?", stop=stop))
    assert result.text == text
    assert result.summary.finish_reason == "stop"
    assert engine.facts()["running"] <= 1


async def test_an_empty_answer(engine: TextEngine, make_work: Work, read: Read) -> None:
    (end,) = engine.tokenizer.eos_ids
    result = await read(engine, make_work("Hi", logit_bias={end: 100.0}))
    assert result.pieces == []
    assert (result.summary.finish_reason, result.summary.completion_tokens) == ("stop", 0)
    assert result.summary.prompt_tokens > 0


async def test_max_tokens_and_the_context_bound_the_answer(make_engine: Make, make_work: Work, read: Read) -> None:
    engine = make_engine(context=64, kv_tokens=64)
    result = await read(engine, make_work(STORY, max_tokens=3))
    assert (result.summary.completion_tokens, result.summary.finish_reason) == (3, "length")
    for wanted in (None, 10_000):
        result = await read(engine, make_work(STORY, max_tokens=wanted))
        assert result.summary.prompt_tokens + result.summary.completion_tokens == 64
        assert result.summary.finish_reason == "length"


async def test_a_prompt_longer_than_the_context_names_both_numbers(
    make_engine: Make, make_work: Work, read: Read
) -> None:
    engine = make_engine(context=64)
    tokens = len(engine.tokenizer.encode_chat([{"role": "user", "content": LONG}]))
    with pytest.raises(InvalidRequest) as caught:
        await read(engine, make_work(LONG))
    assert (caught.value.param, caught.value.code) == ("messages", "context_length_exceeded")
    assert str(tokens) in caught.value.message
    assert "64" in caught.value.message


async def test_a_huge_prompt_does_not_block_the_event_loop(engine: TextEngine, make_work: Work, read: Read) -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    counter = asyncio.ensure_future(count_turns())
    with pytest.raises(InvalidRequest, match="262"):
        await read(engine, make_work("a" * (1 << 20)))
    counter.cancel()
    assert turns > 100


@pytest.mark.parametrize("token", [-1, 49152, 10**9])
async def test_a_bias_for_an_unknown_token_is_refused(
    engine: TextEngine, make_work: Work, read: Read, token: int
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await read(engine, make_work("Hi", logit_bias={token: 1.0}))
    assert caught.value.param == "logit_bias"


async def test_no_messages_are_refused(engine: TextEngine, read: Read) -> None:
    empty = GenerateText(request_id="r", pipeline="omni", node="thinker", route={}, messages=(), sampling=Sampling())
    with pytest.raises(InvalidRequest) as caught:
        await read(engine, empty)
    assert caught.value.param == "messages"


async def test_a_conversation_is_read_whole(engine: TextEngine, make_work: Work, read: Read) -> None:
    turns = (
        ChatMessage(role="system", content="You are a helpful assistant."),
        ChatMessage(role="user", content="My name is Ada."),
        ChatMessage(role="assistant", content="Nice to meet you, Ada!"),
        ChatMessage(role="user", content="What is my name?"),
    )
    request = GenerateText(
        request_id="r",
        pipeline="omni",
        node="thinker",
        route={},
        messages=turns,
        sampling=Sampling(temperature=0.0, max_tokens=20),
    )
    assert "Ada" in (await read(engine, request)).text


async def test_logprobs_describe_each_token(engine: TextEngine, make_work: Work, read: Read) -> None:
    result = await read(engine, make_work("What is the capital of France?", logprobs=2))
    entries = [entry for piece in result.pieces for entry in piece.logprobs]
    assert [entry.token for entry in entries] == ["The", " capital", " of", " France", " is", " Paris", "."]
    assert [len(entry.top) for entry in entries] == [2] * 7
    assert all(entry.top[0].logprob == entry.logprob <= 0.0 for entry in entries)
    assert entries[1].data == b" capital"
    plain = await read(engine, make_work("Hi", logprobs=0, max_tokens=1))
    assert [entry.top for entry in plain.pieces[0].logprobs] == [()]


async def test_characters_of_many_tokens_come_whole(engine: TextEngine, make_work: Work, read: Read) -> None:
    tokens = engine.tokenizer.encode("👩‍👧 日本")
    for count in range(1, len(tokens) + 1):
        known = tuple(tokens[:count])
        result = await read(engine, make_work("Hi", max_tokens=count + 6), emitted=known)
        whole = b"".join(map(engine.tokenizer.token_bytes, [*known, *result.token_ids])).decode(errors="replace")
        assert whole.endswith(result.text)
        assert all("\ufffd" not in piece.text for piece in result.pieces[:-1] if "\ufffd" not in whole)


async def test_abort_frees_the_blocks(engine: TextEngine, make_work: Work) -> None:
    async def abort_at_once() -> None:
        async with engine.generate(make_work(STORY, max_tokens=400)) as items:
            async for _ in items:
                engine.abort("r")

    with pytest.raises(Cancelled):
        await abort_at_once()
    assert engine.facts()["running"] == 0.0
    assert engine.facts()["kv_use"] == 0.0


async def test_leaving_early_frees_the_blocks(engine: TextEngine, make_work: Work) -> None:
    async with engine.generate(make_work(STORY, max_tokens=400)) as items:
        async for _ in items:
            break
    async with asyncio.timeout(5):
        while engine.facts()["running"]:
            await asyncio.sleep(0.005)
    assert engine.facts()["kv_use"] == 0.0


async def test_warming_leaves_no_trace_but_steps(engine: TextEngine) -> None:
    await engine.warm()
    facts = engine.facts()
    assert facts["steps"] >= 8
    assert (facts["running"], facts["waiting"], facts["kv_use"], facts["prefix_hits"]) == (0.0, 0.0, 0.0, 0.0)


async def test_a_closed_engine_refuses(engine: TextEngine, make_work: Work, read: Read) -> None:
    await engine.close()
    with pytest.raises(Unavailable):
        await read(engine, make_work("Hi"))
    assert not engine.alive


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"context": 9000, "kv_tokens": 16384}, "9000 is more than the model's 8192"),
        ({"context": 512, "kv_tokens": 256}, "cannot hold"),
        ({"block_tokens": 24}, "multiple of 16"),
        ({"slots": 0}, "positive"),
        ({"kv_tokens": 0}, "at least one block"),
    ],
)
def test_settings_that_cannot_work_are_refused(make_engine: Make, settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_engine(**settings)


async def test_a_pace_delays_all_but_the_first_token_and_changes_none(
    engine: TextEngine, make_engine: Make, make_work: Work, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr("omnistage_thinker.engine.text.Pacer", partial(Pacer, clock=lambda: sum(waits), sleep=sleep))
    request = make_work(STORY, temperature=1.0, seed=5, max_tokens=12)
    unpaced = await read(engine, request)
    assert waits == []
    paced = await read(make_engine(pace=40.0), request)
    assert paced.token_ids == unpaced.token_ids
    assert waits == pytest.approx([1 / 40.0] * 11)
