"""Qwen3-Omni on the text engine: conversations give the recorded tokens, together, cut off and taken up again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.support.qwen3_omni import tiny_omni

from omnistage.contracts import ChatMessage, GenerateText, Sampling
from omnistage.errors import ConfigError, InvalidRequest
from omnistage.parity import Tolerance
from omnistage_thinker.engine import TextEngine, TextEngineSettings
from omnistage_thinker.models.checkpoint import Checkpoint, load_checkpoint

pytestmark = pytest.mark.timeout(120)

FIXTURES = Path(__file__).parent / "fixtures" / "qwen3_omni" / "fixtures"
CONVERSATION = (
    ChatMessage(role="system", content="Be brief."),
    ChatMessage(role="user", content="Say hello."),
)
END = 274


@pytest.fixture(scope="module", name="folder")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_omni(tmp_path_factory.mktemp("omni") / "model")


@pytest.fixture(scope="module", name="omni")
def _omni(folder: Path) -> Checkpoint:
    return load_checkpoint(folder)


@pytest.fixture(name="make")
async def _make(omni: Checkpoint) -> AsyncIterator[Callable[..., TextEngine]]:
    engines: list[TextEngine] = []

    def make(**settings: Any) -> TextEngine:
        engines.append(TextEngine(omni, TextEngineSettings(kv_tokens=2048, **settings)))
        return engines[-1]

    yield make
    for engine in engines:
        await engine.close()


def work(request_id: str = "r", *, user: str | None = None, **sampling: Any) -> GenerateText:
    messages = CONVERSATION if user is None else (ChatMessage(role="user", content=user),)
    return GenerateText(
        request_id=request_id,
        pipeline="text",
        node="thinker",
        route={},
        messages=messages,
        sampling=Sampling(**{"temperature": 0.0, "max_tokens": 16, **sampling}),
    )


def recorded() -> tuple[list[int], list[int]]:
    """Prompt and answer of the reference, the end of the answer included."""
    tensors = load_file(FIXTURES / "text.safetensors")
    prompt: list[int] = tensors["input_ids"].tolist()
    sequence: list[int] = tensors["thinker_sequence"].tolist()
    return prompt, sequence[len(prompt) :]


async def test_a_conversation_gives_the_recorded_answer(make: Callable[..., TextEngine], read: Any) -> None:
    prompt, answer = recorded()
    assert answer[-1] == END
    engine = make()
    await engine.warm()
    result = await read(engine, work())
    assert result.token_ids == answer[:-1]
    assert result.summary.finish_reason == "stop"
    assert result.summary.prompt_tokens == len(prompt)


USERS = ["Say hello.", "What is the time, and where?", "Hi", "One two three four five six seven eight nine ten."]


@pytest.mark.parametrize("prefix_cache", [True, False])
async def test_together_and_in_small_steps_each_gives_what_it_gives_alone(
    make: Callable[..., TextEngine], read: Any, prefix_cache: bool
) -> None:
    alone = make(prefix_cache=False)
    expected = [await read(alone, work(user=user, temperature=0.9, seed=3, max_tokens=24)) for user in USERS]
    engine = make(slots=3, prefill_tokens=16, chunk_tokens=4, prefix_cache=prefix_cache)
    for turn in "ab":
        found = await asyncio.gather(
            *(
                read(engine, work(f"{turn}{index}", user=user, temperature=0.9, seed=3, max_tokens=24))
                for index, user in enumerate(USERS)
            )
        )
        assert [result.token_ids for result in found] == [result.token_ids for result in expected]
    cached = max(result.summary.cached_tokens for result in found)
    assert (cached > 0) is prefix_cache


@pytest.mark.parametrize("count", [1, 5, 11])
async def test_an_answer_is_taken_up_where_it_was_left(make: Callable[..., TextEngine], read: Any, count: int) -> None:
    engine = make()
    request = work(user=USERS[1], temperature=0.9, seed=5, presence_penalty=0.5)
    whole = await read(engine, request)
    sent, text, index = (), "", 0
    while len(sent) < count:
        sent, text = sent + whole.pieces[index].token_ids, text + whole.pieces[index].text
        index += 1
    rest = await read(engine, request, emitted=sent, emitted_chars=len(text))
    assert text + rest.text == whole.text
    assert [*sent, *rest.token_ids] == whole.token_ids


def test_a_talker_gets_the_recorded_embeddings(omni: Checkpoint) -> None:
    tensors = load_file(FIXTURES / "text.safetensors")
    prompt, answer = recorded()
    spoken = omni.model.prepare(prompt).spoken
    assert spoken is not None
    assert not spoken.needs_hidden
    rows, words = spoken.rows(), omni.model.word_rows
    assert words is not None
    assert rows.token_ids == tuple(prompt)
    assert rows.hidden is None
    assert rows.marks.shape == (3, rows.embeds.shape[1])
    found = torch.cat((torch.from_numpy(rows.embeds), torch.from_numpy(words(answer[:-1]))))
    assert (found - tensors["thinker_embeds"]).abs().max() <= Tolerance.EMBEDDINGS


async def test_names_of_media_tokens_without_media_are_refused(make: Callable[..., TextEngine], read: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await read(make(), work(user="<|vision_start|><|image_pad|><|vision_end|>"))
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("vocab.json", None, "neither tokenizer.json nor"),
        ("merges.txt", "a b c d", "cannot be read"),
        ("chat_template.json", "{}", "no chat template"),
        ("tokenizer_config.json", '{"tokenizer_class": "BertTokenizer"}', "needs a tokenizer.json"),
    ],
)
def test_a_broken_tokenizer_is_refused_by_name(tmp_path: Path, file: str, content: str | None, message: str) -> None:
    folder = tiny_omni(tmp_path / "model")
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_text(content)
    with pytest.raises(ConfigError, match=message):
        load_checkpoint(folder)
