"""Tokens and chat template: the same as transformers', and bytes that join to the text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from omnistage.errors import ConfigError, InvalidRequest
from omnistage_thinker.models.checkpoint import Checkpoint
from omnistage_thinker.models.tokenizer import Tokenizer

pytestmark = pytest.mark.model

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces \n\n and lines\t\ttabs ",
    "In 1999 we had 12,345 cats; 3.14 of them were 007.",
    "don't you'll I'VE we're",
    "naïve café, Straße, ñandú",
    "日本語のテキスト、中文，한국어",
    "emoji 😀👩‍👩‍👧‍👦🏳️‍🌈 and e\u0301 combining",
    "<|im_start|>user\nhi<|im_end|>",
    "def f(x):\n    return x ** 2  # ok\n",
    "\x00\x01\u200b\ufeff",
]


@pytest.mark.parametrize("text", TEXTS)
def test_the_same_ids_as_transformers(checkpoint: Checkpoint, reference: Any, text: str) -> None:
    assert checkpoint.tokenizer.encode(text) == reference.tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("text", [text for text in TEXTS if "<|" not in text])
def test_the_bytes_of_tokens_join_to_the_text(checkpoint: Checkpoint, text: str) -> None:
    tokenizer = checkpoint.tokenizer
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()


@settings(max_examples=150, deadline=None)
@given(text=st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"], exclude_characters="<")))
def test_any_text_survives(checkpoint: Checkpoint, text: str) -> None:
    """Without control characters and the unassigned upper planes: the model has no tokens for some of their bytes."""
    tokenizer = checkpoint.tokenizer
    assert b"".join(map(tokenizer.token_bytes, tokenizer.encode(text))) == text.encode()


def test_every_token_has_bytes_or_is_special(checkpoint: Checkpoint, reference: Any) -> None:
    tokenizer = checkpoint.tokenizer
    special = set(reference.tokenizer.all_special_ids) | set(reference.tokenizer.added_tokens_decoder)
    for token in range(tokenizer.vocab_size):
        assert bool(tokenizer.token_bytes(token)) == (token not in special)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Hi"}],
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c\n"}],
        [{"role": "user", "content": ""}],
    ],
)
def test_conversations_are_rendered_as_transformers_does(
    checkpoint: Checkpoint, reference: Any, messages: list[dict[str, str]]
) -> None:
    expected = reference.tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
    assert checkpoint.tokenizer.encode_chat(messages) == expected


def test_the_template_is_the_files_own_with_its_system_prompt(checkpoint: Checkpoint, reference: Any) -> None:
    ids = checkpoint.tokenizer.encode_chat([{"role": "user", "content": "Hi"}])
    assert reference.tokenizer.decode(ids) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_how_tokens_are_shown(checkpoint: Checkpoint) -> None:
    tokenizer = checkpoint.tokenizer
    (end,) = tokenizer.eos_ids
    assert tokenizer.token_text(end) == "<|im_end|>"
    assert tokenizer.token_bytes(end) == b""
    assert tokenizer.token_text(tokenizer.encode(" world")[0]) == " world"
    assert "\ufffd" in tokenizer.token_text(tokenizer.encode("👩")[0])


def tiny(template: str, *, decoder: Any = None) -> Tokenizer:
    fast = FastTokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    fast.decoder = decoder or decoders.ByteLevel()
    return Tokenizer(fast, chat_template=template, eos_ids=frozenset(), bos_token="<s>", eos_token="</s>")


def test_what_the_template_refuses_is_the_clients_fault() -> None:
    with pytest.raises(InvalidRequest, match="roles must alternate") as caught:
        tiny("{{ raise_exception('roles must alternate') }}").encode_chat([{"role": "user", "content": "a"}])
    assert caught.value.param == "messages"


def test_the_template_sees_the_special_tokens_and_cannot_reach_out() -> None:
    message = {"role": "user", "content": ""}
    assert tiny("{{ 'ab' if bos_token + eos_token == '<s></s>' }}").encode_chat([message]) == [0, 1]
    with pytest.raises(InvalidRequest, match="unsafe"):
        tiny("{{ messages.__class__.__mro__ }}").encode_chat([message])


def test_what_cannot_be_served_is_refused_at_load() -> None:
    with pytest.raises(ConfigError, match="does not compile"):
        tiny("{% if %}")
    with pytest.raises(ConfigError, match="byte-level"):
        tiny("", decoder=decoders.Metaspace())
