"""Text from token ids, piece by piece."""

from __future__ import annotations

import codecs

from omnistage_thinker.models.tokenizer import Tokenizer


class Detokenizer:
    """Joins the bytes of tokens and gives whole characters only.

    Bytes that can no longer become a character give U+FFFD, as the whole-text decoder would.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token: int) -> str:
        """The characters that this token completes; maybe none, maybe several."""
        return self._decoder.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """What is left at the end: U+FFFD for a character that was cut off."""
        return self._decoder.decode(b"", final=True)
