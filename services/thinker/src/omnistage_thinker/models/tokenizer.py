"""Text to token ids and back, and the chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders

from omnistage.errors import ConfigError, InvalidRequest


@cache
def _byte_of_char() -> dict[str, int]:
    """The inverse of GPT-2's map from bytes to printable characters (Radford et al., 2019).

    Printable bytes stand for themselves; the others, in order, for the code points from 256 on.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(byte): byte for byte in printable}
    others = sorted(set(range(256)) - set(printable))
    table.update({chr(256 + index): byte for index, byte in enumerate(others)})
    return table


class Tokenizer:
    """A byte-level BPE tokenizer with its chat template.

    Args:
        fast: the tokenizer.
        chat_template: Jinja source, over the variables that Hugging Face defines.
        eos_ids: tokens that end an answer.
        bos_token: its text, for the template.
        eos_token: its text, for the template.

    Attributes:
        eos_ids: as given.
        vocab_size: number of token ids.

    Raises:
        ConfigError: its tokens are no bytes, or the template does not compile.
    """

    def __init__(
        self, fast: FastTokenizer, *, chat_template: str, eos_ids: frozenset[int], bos_token: str, eos_token: str
    ) -> None:
        if not isinstance(fast.decoder, decoders.ByteLevel):
            raise ConfigError("only byte-level BPE tokenizers are supported")
        self._fast = fast
        self.eos_ids = eos_ids
        self.vocab_size: int = fast.get_vocab_size(with_added_tokens=True)
        self._added = fast.get_added_tokens_decoder()
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(chat_template)
        except TemplateError as error:
            raise ConfigError(f"the chat template does not compile: {error}") from error
        self._names = {"bos_token": bos_token, "eos_token": eos_token}

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; the texts of special tokens become these tokens, none is added."""
        # Unlike `encode`, the call for batches lets other threads run meanwhile.
        ids: list[int] = self._fast.encode_batch([text], add_special_tokens=False)[0].ids
        return ids

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation, up to where the assistant's answer begins.

        Raises:
            InvalidRequest: the template refuses these messages.
        """
        try:
            text = self._template.render(messages=list(messages), add_generation_prompt=True, **self._names)
        except TemplateError as error:
            raise InvalidRequest(f"the chat template refuses these messages: {error}", param="messages") from error
        return self.encode(text)

    def token_bytes(self, token: int) -> bytes:
        """What a token adds to an answer's UTF-8 bytes: nothing for special tokens."""
        added = self._added.get(token)
        if added is not None:
            return b"" if added.special else str(added.content).encode()
        text = self._fast.id_to_token(token)
        if text is None:
            return b""
        table = _byte_of_char()
        return bytes(table[char] for char in text)

    def token_text(self, token: int) -> str:
        """How a token is shown: its text, U+FFFD for bytes that are no whole character, a special token by its name."""
        added = self._added.get(token)
        if added is not None:
            return str(added.content)
        return self.token_bytes(token).decode(errors="replace")


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
