"""Whether a full stop, question mark or line break ends a sentence. Pure."""

from __future__ import annotations

import enum
import re

_LOOK_AHEAD = 8
"""White space looked at to find the character after it."""

_TITLE = re.compile(
    "mr|mrs|ms|mx|messrs|dr|prof|st|mt|ft|gen|gov|sen|rep|capt|lt|col|sgt|cmdr|cpl|maj|adm|rev|hon|pres|fr|msgr"
)
_NEVER_LAST = re.compile("vs|cf|viz|eg|ie|al|approx")
_BEFORE_NUMBER = re.compile("nos?|figs?|vols?|pp?|ch|chap|sec|eq|art|nr|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec")
_OPENERS = "([{\"'“‘«*_`~"
_DOTTED = re.compile(r"(?:\w\.)+\w|ph\.d", re.IGNORECASE)
_CLOCK = ("a.m", "p.m")
_LIST_MARK = re.compile(r"[-*+•>#]+\s|\d{1,3}[.)]\s")
_WRAPPED_LINE_CHARS = 45
"""A line at least this long that ends without punctuation was broken for width, not for sense."""


class Verdict(enum.Enum):
    """Whether a clause ends at a place."""

    END = "end"
    NO = "no"
    UNKNOWN = "unknown"  # it depends on text that has not come yet


def ends_sentence(text: str, start: int, end: int, *, complete: bool) -> Verdict:
    """Judge the full stop, question mark, … at text[start:end], closing quotes and brackets included.

    Args:
        text: the text from the clause's start on.
        start, end: where the punctuation is.
        complete: whether no more text needs to be waited for.
    """
    following, spaces = _following(text, end)
    if following is None and not complete:
        return Verdict.UNKNOWN
    if following is not None and not spaces:
        return Verdict.NO
    if following is not None and following.islower():
        return Verdict.NO
    marks = text[start:end].rstrip("\"'”’»)]}*_`~")
    if marks == "." and _is_abbreviation(text, start, following or ""):
        return Verdict.NO
    return Verdict.END


def ends_line(text: str, position: int, *, complete: bool) -> Verdict:
    """Judge the line break at text[position]."""
    following, spaces = _following(text, position)
    if spaces.count("\n") > 1:
        return Verdict.END
    if following is None:
        return Verdict.END if complete else Verdict.UNKNOWN
    if following.islower():
        return Verdict.NO
    line = text[text.rfind("\n", 0, position) + 1 : position].rstrip()
    if len(line) < _WRAPPED_LINE_CHARS or not line[-1].isalnum():
        return Verdict.END
    rest = text[position + len(spaces) : position + len(spaces) + 5]
    if len(rest) < 5 and not complete:
        return Verdict.UNKNOWN
    return Verdict.END if _LIST_MARK.match(rest) else Verdict.NO


def _following(text: str, end: int) -> tuple[str | None, str]:
    """The first character after the white space at `end` (None: not known), and that white space.

    More white space than is looked at counts as a character by itself.
    """
    position = end
    while position < len(text) and text[position].isspace():
        position += 1
        if position - end == _LOOK_AHEAD:
            return " ", text[end:position]
    return (text[position] if position < len(text) else None), text[end:position]


def _is_abbreviation(text: str, stop: int, following: str) -> bool:
    """Whether the full stop at text[stop] belongs to a short form rather than to the sentence."""
    words = text[:stop].rsplit(None, 1)
    word = words[-1].lstrip(_OPENERS)
    alone = len(words) == 1
    lower = word.lower()
    if _TITLE.fullmatch(lower) or _NEVER_LAST.fullmatch(lower):
        return True
    if _BEFORE_NUMBER.fullmatch(lower):
        return following.isdigit()
    if lower in _CLOCK:
        return False
    if _DOTTED.fullmatch(word):
        return True
    if len(word) == 1 and word.isupper():
        return word != "I" or alone  # an initial; but "so do I." ends
    return alone and (word.isdigit() or len(word) == 1)  # the mark of a list item
