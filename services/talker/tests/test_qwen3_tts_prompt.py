"""Prompts: the rules of languages and speakers, and text that arrives in pieces."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from omnistage_talker.models.qwen3_tts.checkpoint import load_talker
from omnistage_talker.models.qwen3_tts.prompt import Manner, Prompt, language_token
from omnistage_talker.models.qwen3_tts.talker import Talker
from omnistage_talker.models.qwen3_tts.tokenizer import ArrivingText, TextTokenizer, load_tokenizer

TEXT = (
    "Hello,  world!  It's 3.14 o'clock — naïve café.\n\nNew line: 你好，世界。「はい」 x\u0301y\u0327\u0301z "
    "\u1100\u1161\u11a8 end\u00a0of it...  \n"
)


@pytest.fixture(scope="module", name="talker")
def _talker(made: dict[str, Path]) -> Talker:
    return load_talker(made["custom_voice"], length=512)


@pytest.fixture(scope="module", name="tokenizer")
def _tokenizer(made: dict[str, Path], talker: Talker) -> TextTokenizer:
    return load_tokenizer(made["custom_voice"], talker.config.text)


@pytest.mark.parametrize(
    ("language", "speaker", "expected"),
    [
        ("auto", None, None),
        ("Auto", "ryan", None),
        ("english", "ryan", 2050),
        ("ENGLISH", "Dylan", 2050),
        ("chinese", "vivian", 2055),
        ("chinese", "dylan", 2074),
        ("auto", "dylan", 2074),
        ("Chinese", "Eric", 2062),
        ("auto", "eric", 2062),
        ("japanese", "eric", 2058),
    ],
)
def test_dialects_are_spoken_where_chinese_or_nothing_is_asked_for(
    talker: Talker, language: str, speaker: str | None, expected: int | None
) -> None:
    assert language_token(talker.config, language, speaker) == expected


def _pieces(text: str, rng: random.Random) -> list[str]:
    cuts = sorted(rng.sample(range(1, len(text)), rng.randint(0, len(text) - 1)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def test_ids_of_arriving_text_are_those_of_the_whole(tokenizer: TextTokenizer) -> None:
    whole = tokenizer.encode(TEXT.rstrip())
    for seed in range(200):
        arriving = ArrivingText(tokenizer)
        ids = [token for piece in _pieces(TEXT, random.Random(seed)) for token in arriving.feed(piece)]
        assert whole[: len(ids)] == ids
        assert ids + arriving.finish() == whole


def test_words_are_given_as_soon_as_the_next_one_begins(tokenizer: TextTokenizer) -> None:
    arriving = ArrivingText(tokenizer)
    assert arriving.feed("Hel") == []
    assert arriving.feed("lo wor") == tokenizer.encode("Hello")
    assert arriving.feed("ld, and") == tokenizer.encode(" world,")
    assert arriving.finish() == tokenizer.encode(" and")


def _manners(tokenizer: TextTokenizer, talker: Talker) -> list[Manner]:
    generator = torch.Generator().manual_seed(3)
    named = Manner(tokenizer.role, language="english", speaker="ryan")
    cloned = replace(named, speaker=None, embedding=torch.randn(talker.embeddings.width, generator=generator))
    recorded = replace(
        cloned,
        ref_ids=tuple(tokenizer.encode("Reference.")),
        ref_codes=torch.randint(2048, (30, 16), generator=generator),
    )
    return [named, replace(named, non_streaming=True), cloned, recorded, replace(recorded, non_streaming=True)]


@pytest.mark.parametrize("index", range(5))
def test_a_prompt_does_not_depend_on_how_its_text_arrives(tokenizer: TextTokenizer, talker: Talker, index: int) -> None:
    manner = _manners(tokenizer, talker)[index]
    ids = tokenizer.encode("A text of some length, whose tokens come as they like.")
    whole = Prompt(talker.embeddings, talker.config, manner)
    whole.add(ids)
    whole.finish()
    assert whole.prefill is not None
    for seed in range(10):
        rng = random.Random(seed)
        prompt = Prompt(talker.embeddings, talker.config, manner)
        rest = list(ids)
        while rest:
            count = rng.randint(0, 7)
            prompt.add(rest[:count])
            rest = rest[count:]
        prompt.finish()
        assert prompt.prefill is not None
        assert torch.equal(prompt.prefill, whole.prefill)
        assert len(prompt.later) == len(whole.later)
        for row in range(len(whole.later) + 2):
            assert torch.equal(prompt.later.row(row), whole.later.row(row))


def test_a_prompt_begins_as_soon_as_it_can(tokenizer: TextTokenizer, talker: Talker) -> None:
    named, whole_first, _, recorded, _ = _manners(tokenizer, talker)
    first = tokenizer.encode("word")
    begun = []
    for manner in (named, whole_first, recorded):
        prompt = Prompt(talker.embeddings, talker.config, manner)
        prompt.add(first)
        begun.append(prompt.prefill is not None)
        prompt.add(first * 10)
        begun.append(prompt.prefill is not None)
        prompt.finish()
        begun.append(prompt.prefill is not None)
    assert begun == [True, True, True, False, False, True, False, True, True]


def test_rows_are_ready_one_by_one_until_the_text_is_complete(tokenizer: TextTokenizer, talker: Talker) -> None:
    prompt = Prompt(talker.embeddings, talker.config, _manners(tokenizer, talker)[0])
    prompt.add(tokenizer.encode("abc"))
    assert [prompt.later.ready(frames) for frames in range(5)] == [True, True, True, False, False]
    prompt.add(tokenizer.encode("d"))
    assert prompt.later.ready(3)
    assert not prompt.later.ready(4)
    prompt.finish()
    assert prompt.later.ready(1000)
    assert torch.equal(prompt.later.row(3), talker.embeddings.tts_eos)
    assert torch.equal(prompt.later.row(4), talker.embeddings.tts_pad)


def test_the_small_kind_ignores_instructions(made: dict[str, Path], tokenizer: TextTokenizer, talker: Talker) -> None:
    small = load_talker(made["small"], length=512)
    lengths = []
    for model in (talker, small):
        for instruction in ((), tokenizer.instruction("Whisper.")):
            prompt = Prompt(model.embeddings, model.config, Manner(tokenizer.role, instruction, speaker="ryan"))
            prompt.add(tokenizer.encode("abc"))
            prompt.finish()
            assert prompt.prefill is not None
            lengths.append(len(prompt.prefill))
    assert lengths[1] == lengths[0] + len(tokenizer.instruction("Whisper."))
    assert lengths[3] == lengths[2] == lengths[0]
