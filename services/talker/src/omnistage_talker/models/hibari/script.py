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
_LATIN_END = 0x250  # of Latin-1 and Latin Extended A and B
_GREEK_MU = "\u03bc"
_MICRO = "\u00b5"
_FRACTION_SLASH = "\u2044"
_LETTERS = frozenset(("Lu", "Ll", "Lt", "Lo"))
_APOSTROPHES_AND_HYPHENS = "’‑"
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
    spoken = _WORD.sub(lambda word: _fold_word(word.group()), unicodedata.normalize("NFC", text))
    return "".join(_fold_other(character) for character in spoken)


def _foreign_script(word: str) -> str | None:
    """Name of the first script in the word that cannot be spoken; None if the word can be.

    One Greek letter, alone or among Latin ones, is read by its name: π, β-carotene, kΩ.
    """
    others = [character for character in word if not _is_latin(character)]
    if not others or (len(others) == 1 and _greek_name(others[0])):
        return None
    return _script(others[0])


def _fold_word(word: str) -> str:
    return "" if _foreign_script(word) else "".join(_fold_letter(character) for character in word).strip()


@functools.lru_cache(maxsize=4096)
def _is_latin(character: str) -> bool:
    """Whether it is a Latin letter, or no letter of any script (modifiers, as in Hawaiʻi, belong to none)."""
    if ord(character) < _LATIN_END or unicodedata.category(character) not in _LETTERS:
        return True
    return _script(unicodedata.normalize("NFKC", character)[0]) == "Latin"


@functools.lru_cache(maxsize=4096)
def _fold_letter(character: str) -> str:
    """A letter or number in characters of Latin-1 and Latin Extended."""
    if ord(character) < _LATIN_END or character in _APOSTROPHES_AND_HYPHENS:
        return character
    if character == _GREEK_MU:
        return _MICRO
    if name := _greek_name(character):
        return f" {name} "
    plain = unicodedata.normalize("NFKC", character).replace(_FRACTION_SLASH, "/")
    if all(ord(part) < _LATIN_END for part in plain):
        return plain
    bare = unicodedata.normalize("NFKD", character)
    return "".join(part for part in bare if ord(part) < _LATIN_END)


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
    plain = unicodedata.normalize("NFKC", letter)
    match = re.fullmatch(
        r"GREEK (?:SMALL|CAPITAL) LETTER (\w+)", unicodedata.name(plain, "") if len(plain) == 1 else ""
    )
    return match.group(1).lower() if match else None


def _script(character: str) -> str:
    """Name of a character's script: the first word of its Unicode name."""
    name = unicodedata.name(character, "UNKNOWN").split()[0].capitalize()
    return "Chinese" if name == "Cjk" else name
