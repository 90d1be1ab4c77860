"""Text to token ids: byte-level BPE as Qwen2 defines it. What a text says is text: nothing in it is a special token."""

from __future__ import annotations

import unicodedata
from pathlib import Path

from tokenizers import Regex, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE

from omnistage.errors import ConfigError
from omnistage_talker.models.qwen3_tts.config import TextIds

_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Qwen2's pre-tokenizer, for folders that have a vocabulary and merges only."""


class TextTokenizer:
    """Encodes plain text and the turns around it.

    Args:
        fast: any byte-level BPE tokenizer; its added tokens are not used.
        ids: the special tokens of the turns.
    """

    def __init__(self, fast: FastTokenizer, ids: TextIds) -> None:
        plain = FastTokenizer(fast.model)
        plain.normalizer = fast.normalizer
        plain.pre_tokenizer = fast.pre_tokenizer
        self._fast = plain
        self._ids = ids
        self._newline = self.encode("\n")

    def encode(self, text: str) -> list[int]:
        """Token ids of a text by itself."""
        ids: list[int] = self._fast.encode(text, add_special_tokens=False).ids
        return ids

    def starts(self, text: str) -> list[int]:
        """Where the pieces begin that are encoded independently of one another; `text` must be in NFC."""
        pre_tokenizer = self._fast.pre_tokenizer
        if pre_tokenizer is None:
            return [0]
        return [span[0] for _, span in pre_tokenizer.pre_tokenize_str(text)]

    @property
    def role(self) -> tuple[int, ...]:
        """The three tokens that open the assistant's turn."""
        return (self._ids.im_start, self._ids.assistant, *self._newline)

    def instruction(self, text: str) -> tuple[int, ...]:
        """The user's turn that says how to speak."""
        opening = (self._ids.im_start, *self.encode("user"), *self._newline)
        return (*opening, *self.encode(text), self._ids.im_end, *self._newline)


class ArrivingText:
    """Encodes a text in pieces: the ids are those of the whole text without the white space at its end, each given as
    soon as it is certain.

    The last piece of the pre-tokenizer is kept back, since what follows may belong to it.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._pending = ""

    def feed(self, text: str) -> list[int]:
        """More text; returns the ids that are certain by now."""
        self._pending = unicodedata.normalize("NFC", self._pending + text)
        cut = self._certain(self._pending)
        certain, self._pending = self._pending[:cut], self._pending[cut:]
        return self._tokenizer.encode(certain) if certain else []

    def finish(self) -> list[int]:
        """The rest."""
        rest, self._pending = self._pending.rstrip(), ""
        return self._tokenizer.encode(rest) if rest else []

    def _certain(self, text: str) -> int:
        """How many characters no later one can change. A mark may still be joined with the letter before it."""
        if not text:
            return 0
        for start in reversed(self._tokenizer.starts(text)):
            if not unicodedata.category(text[start]).startswith("M"):
                return start
        return 0


def load_tokenizer(folder: Path, ids: TextIds) -> TextTokenizer:
    """Read `tokenizer.json`, or else `vocab.json` and `merges.txt`.

    Raises:
        ConfigError: they are missing or damaged.
    """
    whole, vocabulary, merges = (folder / name for name in ("tokenizer.json", "vocab.json", "merges.txt"))
    if not whole.exists() and not (vocabulary.exists() and merges.exists()):
        raise ConfigError(f"{folder} has neither tokenizer.json nor vocab.json and merges.txt")
    try:
        fast = FastTokenizer.from_file(str(whole)) if whole.exists() else _from_merges(vocabulary, merges)
    except Exception as error:
        # The library raises plain Exception for whatever is wrong with its files.
        raise ConfigError(f"the tokenizer of {folder} cannot be read: {error}") from error
    return TextTokenizer(fast, ids)


def _from_merges(vocabulary: Path, merges: Path) -> FastTokenizer:
    fast = FastTokenizer(BPE.from_file(str(vocabulary), str(merges)))
    fast.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_SPLIT), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    return fast
