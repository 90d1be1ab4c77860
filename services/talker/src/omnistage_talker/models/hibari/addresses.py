"""E-mail and web addresses as they are read aloud. Pure."""

from __future__ import annotations

import re

_EMAIL = re.compile(r"(?:\bmailto:)?(?<![\w.+%-])([\w.+%-]+@[\w-]+(?:\.[\w-]+)+)")
_REST = r"[^\s<>\"'()\[\]{}|\\^`]*"
_URL = re.compile(rf"\b(?:https?|ftp)://({_REST})", re.IGNORECASE)
_ENDINGS = "com|org|net|edu|gov|int|info|io|ai|app|dev|co|uk|de|fr|nl|eu|ch|ca|jp"
_HOST = re.compile(
    rf"(?<![\w@./-])((?:www\.[\w-]+(?:\.[\w-]+)+|(?:[a-z0-9-]+\.)+(?:{_ENDINGS})(?:\.[a-z]{{2}})?)(?![\w-]|\.\w)"
    rf"(?::\d+)?(?:[/?#]{_REST})?)",
    re.IGNORECASE,
)
_TRAILING = ".,;:!?…*_~"
_SYMBOLS = {
    ".": "dot",
    "/": "slash",
    "-": "dash",
    "_": "underscore",
    "@": "at",
    "?": "question mark",
    "=": "equals",
    "&": "and",
    "#": "hash",
    ":": "colon",
    "+": "plus",
    "%": "percent",
    "~": "tilde",
}
_SYMBOL = re.compile("[{}]".format(re.escape("".join(_SYMBOLS))))
_LABELS = {"www": "w w w", "ai": "AI"}


def read_email(text: str) -> str:
    """E-mail addresses: "a.b@c.org" is "a dot b at c dot org"."""
    return _EMAIL.sub(lambda found: _say(found.group(1)), text)


def read_url(text: str) -> str:
    """Web addresses with or without "https://", which nobody says."""
    return _HOST.sub(_say_url, _URL.sub(_say_url, text))


def _say_url(found: re.Match[str]) -> str:
    address = found.group(1).rstrip(_TRAILING)
    return _say(address.rstrip("/")) + found.group(1)[len(address) :]


def _say(address: str) -> str:
    parts = _SYMBOL.sub(lambda symbol: f" {_SYMBOLS[symbol.group()]} ", address).split()
    return " ".join(_LABELS.get(part.lower(), part) for part in parts)
