"""Which characters an English voice can read, and what becomes of the others. Pure.

Latin letters of any form are folded to those that the pronunciation rules know (full width, mathematical, accents of
other languages); a Greek letter by itself is read by its name; characters that only decorate (emoji, controls,
invisible ones) are left out; words of another script cannot be spoken.
"""

from __future__ import annotations

import functools
import re
import unicodedata

_INVISIBLE = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Mn", "Me", "Mc", "So", "Sk"))
_READ_SYMBOLS = frozenset("°©®™¶•")  # of category So, known to the pronunciation rules
_LATIN_1_END = 0x250  # Latin-1, Latin Extended A and B
_WORD = re.compile(r"[^\W\d_]+(?:['’‑-][^\W\d_]+)*")


def first_foreign(text: str) -> tuple[int, str] | None:
    """The first word that cannot be spoken: index of its first character, and the script's name; None if all can."""
    for word in _WORD.finditer(text):
        script = _foreign_script(word.group())
        if script is not None:
            return word.start(), script
    return None


def fold(text: str) -> str:
    """The text in characters that the pronunciation rules know; words of other scripts are left out."""
    spoken = _WORD.sub(lambda word: "" if _foreign_script(word.group()) else _fold_word(word.group()), text)
    return "".join(_fold_other(character) for character in spoken)


def has_letters_or_digits(text: str) -> bool:
    """Whether there is anything that is surely read aloud."""
    return any(character.isalnum() for character in text)


def _foreign_script(word: str) -> str | None:
    """Name of the first script in the word that is not Latin; None if the word can be spoken."""
    if len(word) == 1 and _greek_name(word):
        return None
    for character in word:
        if character.isalpha() and not _is_latin(character):
            return _script(character)
    return None


def _fold_word(word: str) -> str:
    if len(word) == 1 and (name := _greek_name(word)):
        return name
    return "".join(_fold_letter(character) for character in word)


@functools.lru_cache(maxsize=4096)
def _is_latin(letter: str) -> bool:
    return _script(unicodedata.normalize("NFKC", letter)[0]) in ("Latin", "Feminine", "Masculine", "Kelvin", "Micro")


@functools.lru_cache(maxsize=4096)
def _fold_letter(character: str) -> str:
    """A Latin letter as one of Latin-1 or Latin Extended; all else as it is."""
    if ord(character) < _LATIN_1_END or not character.isalpha():
        return character
    plain = unicodedata.normalize("NFKC", character)
    if all(ord(part) < _LATIN_1_END for part in plain):
        return plain
    bare = unicodedata.normalize("NFKD", character)
    return "".join(part for part in bare if ord(part) < _LATIN_1_END)


@functools.lru_cache(maxsize=4096)
def _fold_other(character: str) -> str:
    """A character that is no part of a word."""
    if character in _READ_SYMBOLS or (character.isascii() and character.isprintable()):
        return character
    category = unicodedata.category(character)
    if character.isspace():
        return character
    if category in _INVISIBLE:
        return "" if category in ("Cf", "Mn", "Me", "Mc") else " "
    if category == "Nd":
        return str(unicodedata.digit(character))
    return character


@functools.lru_cache(maxsize=4096)
def _greek_name(letter: str) -> str | None:
    """The name of a Greek letter without accents, e.g. "alpha"."""
    match = re.fullmatch(r"GREEK (?:SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(letter, ""))
    return match.group(1).lower() if match else None


def _script(character: str) -> str:
    """Name of a character's script: the first word of its Unicode name."""
    name = unicodedata.name(character, "UNKNOWN").split()[0].capitalize()
    return "Chinese" if name == "Cjk" else name
