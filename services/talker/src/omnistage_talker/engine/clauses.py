"""Cuts text into clauses as it arrives; each is spoken as one segment. Pure.

A clause ends where a sentence or a line ends; at other punctuation once it is long enough; and at the latest near a
maximal length. Every decision depends on the text alone, with bounded look-ahead, so the clauses do not depend on how
the text was cut into pieces.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from omnistage_talker.engine.sentence_ends import Verdict, ends_line, ends_sentence
from omnistage_talker.models.base import Clause

_CANDIDATE = re.compile(r"\n|[.!?…]+[\"'”’»)\]}*_`~]*|[,;:—–]+[\"'”’)*_]*")
_SENTENCE_MARKS = frozenset(".!?…")
_PHRASE_MARKS = (",", ";", ":", "—", "–")
_SOFT_CUT = re.compile(r"[,;:—–][\"'”’)*_]*\s")


@dataclass(frozen=True, kw_only=True)
class ClauseLimits:
    """How long clauses are, in characters.

    Attributes:
        first_min_chars: the first clause may end at a comma or the like from this length on.
        min_chars: the others from this one on: a sentence in one piece sounds better.
        rest_chars: no cut at a comma with less than this before the sentence's end.
        max_chars: no clause is longer.
    """

    first_min_chars: int = 48
    min_chars: int = 120
    rest_chars: int = 24
    max_chars: int = 260


class ClauseSplitter:
    """Text in pieces in, clauses out."""

    def __init__(self, limits: ClauseLimits | None = None) -> None:
        self._limits = limits or ClauseLimits()
        self._text = ""
        self._first = True
        self._in_sentence = False

    def feed(self, piece: str) -> list[Clause]:
        """The clauses whose end this piece makes certain, stripped of white space."""
        self._text += piece
        return self._cut(final=False)

    def finish(self) -> list[Clause]:
        """What is left, when no more text will come."""
        return self._cut(final=True)

    def _cut(self, *, final: bool) -> list[Clause]:
        clauses = []
        start = _skip_space(self._text, 0)
        while start < len(self._text):
            found = _clause_end(self._text, start, self._limits, first=self._first, final=final)
            if found is None:
                break
            end, sentence_end = found
            text = self._text[start:end].rstrip()
            clauses.append(Clause(text=text, sentence_start=not self._in_sentence, sentence_end=sentence_end))
            self._first, self._in_sentence = False, not sentence_end
            start = _skip_space(self._text, end)
        self._text = self._text[start:]
        return clauses


def _skip_space(text: str, start: int) -> int:
    while start < len(text) and text[start].isspace():
        start += 1
    return start


def _clause_end(text: str, start: int, limits: ClauseLimits, *, first: bool, final: bool) -> tuple[int, bool] | None:
    """Where the clause that begins at `start` ends, and whether a sentence ends there; None if that needs more text."""
    reach = limits.max_chars + limits.rest_chars + 16
    window = text[start : start + reach]
    complete = final or len(window) == reach
    for match in _CANDIDATE.finditer(window, 0):
        if match.end() > limits.max_chars:
            break
        verdict = _judge(window, match, limits, first=first, complete=complete)
        if verdict is Verdict.UNKNOWN:
            return None
        if verdict is Verdict.END:
            return start + match.end(), not match.group().startswith(_PHRASE_MARKS)
    if not complete:
        return None
    if len(window) <= limits.max_chars:
        return start + len(window), True
    return start + _forced_end(window, limits.max_chars), False


def _judge(window: str, match: re.Match[str], limits: ClauseLimits, *, first: bool, complete: bool) -> Verdict:
    """Whether the clause ends with the punctuation found."""
    mark = match.group()
    if not any(character.isalnum() for character in window[: match.start()]):
        return Verdict.NO
    if mark == "\n":
        return ends_line(window, match.start(), complete=complete)
    if mark[0] in _SENTENCE_MARKS:
        return ends_sentence(window, match.start(), match.end(), complete=complete)
    return _ends_phrase(window, match.end(), limits, first=first, complete=complete)


def _ends_phrase(window: str, end: int, limits: ClauseLimits, *, first: bool, complete: bool) -> Verdict:
    """Whether a comma or the like is a good place to end."""
    if end < (limits.first_min_chars if first else limits.min_chars):
        return Verdict.NO
    rest = window[end : end + limits.rest_chars]
    if rest and not (rest[0].isspace() or window[end - 1] in "—–"):
        return Verdict.NO
    if len(rest) < limits.rest_chars:
        return Verdict.NO if complete else Verdict.UNKNOWN
    return Verdict.NO if any(character in ".!?…\n" for character in rest) else Verdict.END


def _forced_end(window: str, max_chars: int) -> int:
    """Where to cut a clause without any natural end: the last comma of its second half, a word border, or anywhere."""
    cuts = [match.end() for match in _SOFT_CUT.finditer(window[:max_chars])]
    if cuts and cuts[-1] > max_chars // 2:
        return cuts[-1]
    for position in range(max_chars, 0, -1):
        if window[position].isspace():
            return position
    return max_chars
