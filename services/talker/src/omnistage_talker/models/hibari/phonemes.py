"""English text to phonemes, in pieces that the acoustic model can take at once."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any, Protocol

import msgspec

MAX_PHONEMES = 400
"""Most phonemes of one run: the voice was trained on single sentences."""

_PUNCTUATION = re.compile(r"(?<=[.!?…,;:—])\s+")
_SPOKEN = re.compile(r"[^\W\d_\u02c8\u02cc\u02d0]")  # a letter that is no mark of stress or length
_LINK = re.compile(r"\]\(")
_LONG_NUMBER = re.compile(r"\d(?:,?\d){18,}")


class Pronouncer(Protocol):
    """Text of a line to a string of phonemes."""

    def __call__(self, text: str) -> str: ...


def load_pronouncer() -> Pronouncer:
    """The American pronunciation rules of the package hibari-tts, with the net for unknown words loaded."""
    from hibari.g2p import G2P

    rules: Any = G2P(british=False)
    rules("warm zzyzx")
    pronounce: Pronouncer = rules
    return pronounce


def load_vocabulary() -> dict[str, int]:
    """Phoneme -> id of the acoustic model's input."""
    return msgspec.json.decode(Path(str(files("hibari") / "assets" / "vocab.json")).read_bytes(), type=dict[str, int])


def pronounce(rules: Pronouncer, text: str) -> tuple[str, ...]:
    """Phonemes of a clause, at most MAX_PHONEMES in each string; none if there is nothing to be heard.

    Two things the rules would do are kept from them: to take `[word](/phonemes/)` as phonemes to be spoken, and to
    name numbers beyond their largest scale, whose digits are read one by one instead.
    """
    plain = _LINK.sub("] (", text)
    plain = _LONG_NUMBER.sub(lambda number: " ".join(number.group().replace(",", "")), plain)
    try:
        phonemes = rules(plain)
    except Exception:  # noqa: BLE001 - written for tidy text, the rules may raise anything on other text
        phonemes = " ".join(_pronounce_word(rules, word) for word in plain.split())
    return tuple(piece for piece in split_phonemes(phonemes) if _SPOKEN.search(piece))


def _pronounce_word(rules: Pronouncer, word: str) -> str:
    """A word by itself; one that the rules cannot read is spelt."""
    try:
        return rules(word)
    except Exception:  # noqa: BLE001 - as above
        return " ".join(rules(character) for character in word if character.isalnum())


def split_phonemes(phonemes: str, limit: int = MAX_PHONEMES) -> list[str]:
    """Cut at punctuation where that suffices, else between words, else anywhere."""
    if len(phonemes) <= limit:
        return [phonemes]
    pieces: list[str] = []
    current = ""
    for part in _parts(phonemes, limit):
        if current and len(current) + 1 + len(part) > limit:
            pieces.append(current)
            current = part
        else:
            current = f"{current} {part}" if current else part
    return [*pieces, current]


def _parts(phonemes: str, limit: int) -> list[str]:
    parts: list[str] = []
    for phrase in _PUNCTUATION.split(phonemes):
        words = [phrase] if len(phrase) <= limit else phrase.split()
        parts += [word[start : start + limit] for word in words for start in range(0, len(word), limit)]
    return parts
