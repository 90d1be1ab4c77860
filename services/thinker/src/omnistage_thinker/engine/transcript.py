"""The answer as it grows: from tokens to deltas that can be sent, and sent again after a crash."""

from __future__ import annotations

from dataclasses import dataclass

from omnistage.contracts import TokenLogprob
from omnistage_thinker.engine.detokenizer import Detokenizer
from omnistage_thinker.engine.stop_strings import StopStrings
from omnistage_thinker.models.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text that is certain now.

    Attributes:
        text: whole characters; empty only where tokens without text end the answer.
        token_ids: the tokens taken since the piece before. A new transcript that replays all pieces' ids goes on
            exactly where they end: that is how another holder takes over.
        logprobs: one entry per token where asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()


class Transcript:
    """Detokenizer and stop strings of one answer.

    Attributes:
        num_tokens: tokens taken so far.
    """

    def __init__(self, tokenizer: Tokenizer, stops: tuple[str, ...]) -> None:
        self._detokenizer = Detokenizer(tokenizer)
        self._stops = StopStrings(stops)
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._skip = 0
        self.num_tokens = 0

    def has_stopped(self) -> bool:
        """Whether a stop string was found."""
        return self._stops.hit

    def add(self, token: int, logprob: TokenLogprob | None = None) -> TextPiece | None:
        """Take a token; gives a piece when there is text to send."""
        self.num_tokens += 1
        self._tokens.append(token)
        if logprob is not None:
            self._logprobs.append(logprob)
        text = self._unsent(self._stops.add(self._detokenizer.add(token)))
        return self._cut(text) if text else None

    def finish(self) -> TextPiece | None:
        """The last piece: what was held back, unless a stop string cut it off."""
        text = self._unsent(self._stops.add(self._detokenizer.finish()) + self._stops.finish())
        return self._cut(text) if text or self._tokens else None

    def replay(self, tokens: tuple[int, ...], sent_chars: int) -> None:
        """Take the tokens of pieces that were sent before.

        Args:
            tokens: their ids.
            sent_chars: length of their text. It is more than these tokens give where the last piece was sent already,
                with text that had been held back; that text is not given again.
        """
        pieces = [self.add(token) for token in tokens]
        self._tokens.clear()
        self._skip = max(0, sent_chars - sum(len(piece.text) for piece in pieces if piece is not None))

    def _unsent(self, text: str) -> str:
        skipped = min(self._skip, len(text))
        self._skip -= skipped
        return text[skipped:]

    def _cut(self, text: str) -> TextPiece:
        piece = TextPiece(text, tuple(self._tokens), tuple(self._logprobs))
        self._tokens.clear()
        self._logprobs.clear()
        return piece
