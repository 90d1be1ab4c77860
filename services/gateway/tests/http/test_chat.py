"""POST /v1/chat/completions through the official SDK: text and speech, whole and streamed."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
from collections.abc import AsyncIterator
from typing import Any

import av
import httpx
import numpy as np
import openai
import pytest

from omnistage.contracts import AnyWork, ChatMessage, GenerateText
from omnistage.errors import InvalidRequest, StageFailed
from omnistage_gateway.dispatch.interface import AudioPiece, Event

ANSWER = "The capital of France is Paris."
SECONDS = len(ANSWER) * 0.05
QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
BODY: dict[str, Any] = {"model": "gpt-4o", "messages": QUESTION}
SPOKEN: dict[str, Any] = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "pcm16"}}
USAGE = {"prompt_tokens": 11, "completion_tokens": 7, "total_tokens": 18}


async def test_plain_text(client: openai.AsyncOpenAI, stand: Any) -> None:
    answer = await client.chat.completions.create(**BODY)
    assert answer.object == "chat.completion"
    assert answer.id.startswith("chatcmpl-")
    assert answer.model == "smollm2"
    assert answer.system_fingerprint
    assert answer.system_fingerprint.startswith("fp_")
    (choice,) = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (choice.message.role, choice.message.content) == ("assistant", ANSWER)
    assert (choice.message.refusal, choice.message.audio) == (None, None)
    assert answer.usage
    assert answer.usage.model_dump(include=set(USAGE)) == USAGE
    assert answer.usage.prompt_tokens_details
    assert answer.usage.prompt_tokens_details.cached_tokens == 3
    (work,) = stand.fake.works
    assert (work.pipeline, work.node, work.route) == ("text", "thinker", {"thinker": "smollm2"})
    assert work.speech is None


async def test_streamed_text(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(**BODY, stream=True, stream_options={"include_usage": True})
    chunks = [chunk async for chunk in stream]
    assert (
        len({(chunk.id, chunk.created, chunk.model, chunk.object, chunk.system_fingerprint) for chunk in chunks}) == 1
    )
    assert chunks[0].object == "chat.completion.chunk"
    *parts, last = chunks
    assert last.choices == []
    assert last.usage
    assert last.usage.model_dump(include=set(USAGE)) == USAGE
    assert all("usage" in chunk.model_fields_set and chunk.usage is None for chunk in parts)
    deltas = [chunk.choices[0] for chunk in parts]
    assert (deltas[0].delta.role, deltas[0].delta.content) == ("assistant", "")
    assert "".join(choice.delta.content or "" for choice in deltas) == ANSWER
    assert [choice.finish_reason for choice in deltas] == [None] * (len(deltas) - 1) + ["stop"]
    assert deltas[-1].delta.model_dump(exclude_none=True) == {}


async def test_the_raw_stream_ends_with_done_and_has_usage_only_when_asked(http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/chat/completions", json={**BODY, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    blocks = answer.text.strip().split("\n\n")
    assert blocks[-1] == "data: [DONE]"
    chunks = [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]
    assert not any("usage" in chunk or "obfuscation" in chunk for chunk in chunks)
    assert all(set(chunk["choices"][0]) == {"index", "delta", "logprobs", "finish_reason"} for chunk in chunks)


async def test_obfuscation_makes_chunks_alike(http: httpx.AsyncClient) -> None:
    answer = await http.post(
        "/v1/chat/completions", json={**BODY, "stream": True, "stream_options": {"include_obfuscation": True}}
    )
    blocks = answer.text.strip().split("\n\n")[:-1]
    assert {len(block.removeprefix("data: ").encode()) % 64 for block in blocks} == {0}
    assert all("obfuscation" in json.loads(block.removeprefix("data: ")) for block in blocks)


def decoded_seconds(data: bytes, name: str) -> float:
    if name == "pcm16":
        return len(data) / 48_000
    with av.open(io.BytesIO(data), "r") as container:
        frames = list(container.decode(audio=0))
    return sum(frame.samples for frame in frames) / frames[0].sample_rate


@pytest.mark.parametrize("name", ["wav", "mp3", "flac", "opus", "aac", "pcm16"])
async def test_spoken_whole(client: openai.AsyncOpenAI, stand: Any, name: Any) -> None:
    answer = await client.chat.completions.create(
        **BODY, modalities=["text", "audio"], audio={"voice": "alloy", "format": name}, seed=5
    )
    message = answer.choices[0].message
    assert message.content is None
    assert message.audio
    assert message.audio.transcript == ANSWER
    assert abs(decoded_seconds(base64.b64decode(message.audio.data), name) - SECONDS) <= (
        0.1 if name == "aac" else 0.05
    )
    assert 3500 < message.audio.expires_at - answer.created < 3700
    (work,) = stand.fake.works
    assert (work.pipeline, set(work.route)) == ("omni", {"thinker", "talker", "codec"})
    assert (work.speech.voice, work.speech.seed, work.sampling.seed) == ("heart", 5, 5)


async def test_spoken_streamed(client: openai.AsyncOpenAI, stand: Any) -> None:
    stream = await client.chat.completions.create(
        **BODY, **SPOKEN, stream=True, seed=5, stream_options={"include_usage": True}
    )
    chunks = [chunk.model_dump(exclude_unset=True) async for chunk in stream]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks[:-1]]
    audio = [delta["audio"] for delta in deltas if "audio" in delta]
    assert deltas[0]["role"] == "assistant"
    assert not any(delta.get("content") for delta in deltas)
    assert audio[0]["id"].startswith("audio_")
    assert "".join(part.get("transcript", "") for part in audio) == ANSWER
    data = b"".join(base64.b64decode(part["data"]) for part in audio if "data" in part)
    assert abs(len(data) / 48_000 - SECONDS) < 0.001
    assert set(audio[-1]) == {"expires_at"}
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-3:-1]] == [None, "stop"]
    assert chunks[-1]["choices"] == []
    usage = chunks[-1]["usage"]
    heard = math.ceil(len(data) / 48_000 * 20)
    assert usage["completion_tokens_details"]["audio_tokens"] == heard, "each started 50 ms"
    assert (usage["completion_tokens"], usage["total_tokens"]) == (7 + heard, 18 + heard)
    whole = await client.chat.completions.create(**BODY, **SPOKEN, seed=5)
    assert whole.choices[0].message.audio
    assert base64.b64decode(whole.choices[0].message.audio.data) == data
    assert whole.usage
    assert whole.usage.model_dump(exclude_unset=True) == usage
    assert await stand.transcripts.get(audio[0]["id"]) == ANSWER


async def test_speech_is_sent_while_text_is_still_written(stand: Any, url: str, events: Any) -> None:
    go_on = asyncio.Event()

    async def script(work: AnyWork) -> AsyncIterator[Event]:
        yield events["text"]("Well, ")
        yield AudioPiece(events["tone"](0.2), 24_000)
        await go_on.wait()
        yield events["text"]("yes.")
        yield events["done"]()

    stand.fake.script = script
    body = {**BODY, **SPOKEN, "stream": True}
    async with (
        httpx.AsyncClient() as client,
        client.stream("POST", f"{url}/v1/chat/completions", json=body) as response,
    ):
        lines = response.aiter_lines()
        async for line in lines:
            if '"data":' in line:
                break
        assert not go_on.is_set()
        go_on.set()
        assert [line async for line in lines if line][-1] == "data: [DONE]"


async def test_a_later_turn_refers_to_audio(client: openai.AsyncOpenAI, stand: Any) -> None:
    first = await client.chat.completions.create(**BODY, **SPOKEN)
    said = first.choices[0].message
    assert said.audio
    turns: list[Any] = [said, {"role": "assistant", "audio": {"id": said.audio.id}}]
    for turn in turns:
        await client.chat.completions.create(
            model="gpt-4o", messages=[*QUESTION, turn, {"role": "user", "content": "And of Spain?"}]
        )
        assert [(message.role, message.content) for message in stand.fake.works[-1].messages] == [
            ("user", QUESTION[0]["content"]),
            ("assistant", ANSWER),
            ("user", "And of Spain?"),
        ]


async def test_a_text_answer_can_be_sent_back_as_it_came(client: openai.AsyncOpenAI, stand: Any) -> None:
    first = await client.chat.completions.create(**BODY)
    await client.chat.completions.create(model="gpt-4o", messages=[*QUESTION, first.choices[0].message, *QUESTION])
    assert stand.fake.works[-1].messages[1] == ChatMessage(role="assistant", content=ANSWER)


async def test_everything_that_reaches_the_thinker(client: openai.AsyncOpenAI, stand: Any) -> None:
    await client.chat.completions.create(
        model="smollm2",
        messages=[
            {"role": "developer", "content": "Be brief."},
            {"role": "system", "content": [{"type": "text", "text": "Be "}, {"type": "text", "text": "kind."}]},
            {"role": "user", "content": [{"type": "text", "text": "Hi"}], "name": "ann"},
            {"role": "assistant", "content": "Hello"},
            {"role": "tool", "content": "42", "tool_call_id": "call_1"},
        ],
        temperature=0,
        top_p=0,
        seed=-1,
        stop=["\n", "END"],
        max_completion_tokens=12,
        frequency_penalty=0.5,
        presence_penalty=-2,
        logit_bias={"42": -100},
        logprobs=True,
        top_logprobs=2,
        user="u",
        safety_identifier="s",
        metadata={"a": "b"},
        store=False,
        response_format={"type": "text"},
        tool_choice="none",
        tools=[],
        service_tier="auto",
        reasoning_effort="none",
    )
    (work,) = stand.fake.works
    assert isinstance(work, GenerateText)
    assert work.messages == (
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="system", content="Be kind."),
        ChatMessage(role="user", content="Hi", name="ann"),
        ChatMessage(role="assistant", content="Hello"),
        ChatMessage(role="tool", content="42"),
    )
    sampling = work.sampling
    assert (sampling.temperature, sampling.seed, sampling.stop, sampling.max_tokens) == (
        0,
        2**63 - 1,
        ("\n", "END"),
        12,
    )
    assert 0 < sampling.top_p < 1e-6
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (0.5, -2.0)
    assert (sampling.logit_bias, sampling.logprobs) == ({42: -100.0}, 2)


async def test_defaults(client: openai.AsyncOpenAI, stand: Any) -> None:
    await client.chat.completions.create(**BODY, stop="x", max_tokens=3)
    await client.chat.completions.create(**BODY)
    await client.chat.completions.create(**BODY, temperature=1, top_p=1)
    await client.chat.completions.create(**BODY, extra_body={"temperature": None, "top_p": None})
    first, second, asked, null = (work.sampling for work in stand.fake.works)
    assert (first.stop, first.max_tokens) == (("x",), 3)
    assert (second.stop, second.max_tokens, second.logprobs) == ((), 1024, None)
    assert (second.temperature, second.top_p) == (null.temperature, null.top_p) == (0.0, 1.0)  # the model's own
    assert (asked.temperature, asked.top_p) == (1.0, 1.0)
    assert first.seed != second.seed


async def test_logprobs(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**BODY, logprobs=True, top_logprobs=2)
    assert answer.choices[0].logprobs
    content = answer.choices[0].logprobs.content
    assert content
    assert "".join(token.token for token in content) == ANSWER
    assert bytes(content[0].bytes or []) == b"The"
    assert content[0].logprob == -0.5
    assert [(top.token, top.logprob) for top in content[0].top_logprobs] == [("t0", -1.0), ("t1", -2.0)]
    stream = await client.chat.completions.create(**BODY, logprobs=True, stream=True)
    streamed = [
        token
        async for chunk in stream
        for token in (chunk.choices[0].logprobs.content or [] if chunk.choices[0].logprobs else [])
    ]
    assert "".join(token.token for token in streamed) == ANSWER
    assert streamed[0].top_logprobs == []


@pytest.mark.parametrize("extra", [{}, SPOKEN])
async def test_several_answers(client: openai.AsyncOpenAI, stand: Any, extra: dict[str, Any]) -> None:
    answer = await client.chat.completions.create(**BODY, **extra, n=3, seed=9)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage
    heard = 3 * math.ceil(SECONDS * 20) if extra else 0
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 21 + heard)
    assert stand.fake.works[0].sampling.seed == 9
    assert len({work.sampling.seed for work in stand.fake.works}) == 3
    assert len({work.request_id for work in stand.fake.works}) == 3
    seeds = [work.sampling.seed for work in stand.fake.works]
    stream = await client.chat.completions.create(**BODY, **extra, n=3, seed=9, stream=True)
    texts, reasons, ids = ["", "", ""], [""] * 3, set()
    order = []
    async for chunk in stream:
        (choice,) = chunk.choices
        order.append(choice.index)
        audio = getattr(choice.delta, "audio", None)
        texts[choice.index] += choice.delta.content or (audio and audio.transcript) or ""
        reasons[choice.index] += choice.finish_reason or ""
        if audio and audio.id:
            ids.add(audio.id)
    assert texts == [ANSWER] * 3
    assert reasons == ["stop"] * 3
    assert len(ids) == (3 if extra else 0)
    assert order != sorted(order)
    assert [work.sampling.seed for work in stand.fake.works[3:]] == seeds


@pytest.mark.parametrize("reason", ["stop", "length"])
async def test_finish_reason(client: openai.AsyncOpenAI, stand: Any, events: Any, reason: str) -> None:
    async def script(work: AnyWork) -> AsyncIterator[Event]:
        yield events["text"]("Hm")
        yield events["text"]("")
        yield events["done"](reason, 1)

    stand.fake.script = script
    answer = await client.chat.completions.create(**BODY)
    assert (answer.choices[0].message.content, answer.choices[0].finish_reason) == ("Hm", reason)


@pytest.mark.parametrize("said", ["", "Да."])
@pytest.mark.parametrize("name", ["wav", "mp3", "flac", "opus", "aac", "pcm16"])
async def test_an_answer_without_a_sound_is_a_short_silence(
    client: openai.AsyncOpenAI, stand: Any, events: Any, name: Any, said: str
) -> None:
    async def script(work: AnyWork) -> AsyncIterator[Event]:
        yield events["text"](said)
        yield events["done"]("stop", 0)

    stand.fake.script = script
    spoken: Any = {**SPOKEN, "audio": {"voice": "alloy", "format": name}}
    answer = await client.chat.completions.create(**BODY, **spoken)
    audio = answer.choices[0].message.audio
    assert audio
    assert audio.transcript == said
    assert 0.2 <= decoded_seconds(base64.b64decode(audio.data), name) <= 0.3
    if name == "pcm16":
        stream = await client.chat.completions.create(**BODY, **spoken, stream=True)
        deltas = [chunk.model_dump(exclude_unset=True)["choices"][0]["delta"] async for chunk in stream]
        assert [delta["audio"]["data"] for delta in deltas if "data" in delta.get("audio", {})] == [audio.data]
        assert base64.b64decode(audio.data) == bytes(9600)
        assert "data" in deltas[-3]["audio"]
        assert "expires_at" in deltas[-2]["audio"]


async def test_an_answer_that_says_nothing(client: openai.AsyncOpenAI, stand: Any, events: Any) -> None:
    async def script(work: AnyWork) -> AsyncIterator[Event]:
        yield events["done"]("stop", 0)

    stand.fake.script = script
    answer = await client.chat.completions.create(**BODY)
    assert answer.choices[0].message.content == ""
    stream = await client.chat.completions.create(**BODY, stream=True)
    assert [chunk.choices[0].finish_reason async for chunk in stream] == [None, "stop"]


async def test_an_early_error_decides_the_status_whatever_the_shape(stand: Any, http: httpx.AsyncClient) -> None:
    async def script(work: AnyWork) -> AsyncIterator[Event]:
        if work:
            raise InvalidRequest("The conversation is too long.", code="context_length_exceeded", param="messages")
        yield AudioPiece(np.zeros(0, np.int16), 24_000)

    stand.fake.script = script
    for extra in ({}, {"stream": True}, {"n": 4, "stream": True}, {**SPOKEN, "n": 2}):
        answer = await http.post("/v1/chat/completions", json={**BODY, **extra})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "messages"
        assert answer.json()["error"]["code"] == "context_length_exceeded"


async def test_an_error_in_the_stream_reaches_the_sdk(stand: Any, client: openai.AsyncOpenAI, events: Any) -> None:
    async def script(work: AnyWork) -> AsyncIterator[Event]:
        yield events["text"]("Well")
        await asyncio.sleep(0.01)
        raise StageFailed("the thinker broke", stage="thinker")

    stand.fake.script = script
    stream = await client.chat.completions.create(**BODY, n=2, stream=True)
    taken = []

    async def read() -> None:
        async for chunk in stream:
            taken.append(chunk)

    with pytest.raises(openai.APIError, match="the thinker broke"):
        await read()
    assert len(taken) >= 3
    assert stand.fake.idle


async def test_what_the_voice_refuses_is_not_the_client_s_fault(stand: Any, http: httpx.AsyncClient) -> None:
    async def script(work: AnyWork) -> AsyncIterator[Event]:
        if work:
            raise InvalidRequest("Nothing speakable.", param="input", stage="talker")
        yield AudioPiece(np.zeros(0, np.int16), 24_000)

    stand.fake.script = script
    answer = await http.post("/v1/chat/completions", json={**BODY, **SPOKEN})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "answer_not_speakable")
    assert answer.json()["error"]["param"] is None


async def test_events_that_end_without_a_reason_are_an_error(stand: Any, http: httpx.AsyncClient, events: Any) -> None:
    async def script(work: AnyWork) -> AsyncIterator[Event]:
        yield events["text"]("Well")

    stand.fake.script = script
    answer = await http.post("/v1/chat/completions", json=BODY)
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "incomplete_answer")


async def test_stages_are_told_whether_the_answer_is_streamed(stand: Any, http: httpx.AsyncClient) -> None:
    await http.post("/v1/chat/completions", json={**BODY, "stream": True})
    await http.post("/v1/chat/completions", json={**BODY, "n": 2})
    assert [plan.streamed for plan in stand.fake.plans] == [True, False, False]


@pytest.mark.parametrize("spoken", [{}, SPOKEN])
async def test_an_answer_that_fails_takes_the_others_with_it(
    http: httpx.AsyncClient, stand: Any, spoken: dict[str, Any]
) -> None:
    """The request has failed, so nobody works on for its other answers."""

    async def script(work: AnyWork) -> AsyncIterator[Event]:
        if work.request_id.endswith("-1"):
            while stand.fake.active < 3:
                await asyncio.sleep(0.001)
            raise StageFailed("broken", stage="thinker")
        await asyncio.Event().wait()
        yield AudioPiece(np.zeros(1, np.int16), 24_000)

    stand.fake.script = script
    answer = await http.post("/v1/chat/completions", json={**BODY, **spoken, "n": 3}, timeout=20)
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "stage_failed"
    assert stand.fake.idle
    assert len(stand.fake.left) == 3
    assert stand.fake.completed == []
