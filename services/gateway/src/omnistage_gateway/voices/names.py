"""What voices and consents may be called, and the ids that they get."""

from __future__ import annotations

import hashlib
import re
import secrets
import unicodedata

from omnistage.errors import InvalidRequest

VOICE = "voice_"
CONSENT = "cons_"

MAX_NAME_CHARS = 64

_NAME = re.compile(r"[^\W_](?:[\w .'-]*[\w.'-])?")
_DIGITS = 24
_ID = re.compile(rf"(?:{VOICE}|{CONSENT})[0-9a-f]{{{_DIGITS}}}")
_RESERVED = frozenset(
    (
        *("alloy", "ash", "ballad", "cedar", "coral", "echo", "fable", "marin", "nova", "onyx", "sage", "shimmer"),
        *("verse", "default", "auto", "none"),
    )
)
"""Names of OpenAI's voices, which every client expects to mean those, and words that mean no voice."""


def checked_name(name: str, param: str = "name") -> str:
    """A name in its one written form (Unicode NFC): letters and digits, then also spaces and . _ ' - between them.

    Raises:
        InvalidRequest: it is none.
    """
    plain = unicodedata.normalize("NFC", name)
    if not _NAME.fullmatch(plain) or len(plain) > MAX_NAME_CHARS or ".." in plain:
        raise InvalidRequest(
            f"Invalid value for '{param}': 1 to {MAX_NAME_CHARS} letters, digits, spaces and . _ ' - are allowed, "
            "a letter or digit first, no two dots in a row, no space at the end.",
            param=param,
        )
    return plain


def check_free(name: str, built_in: frozenset[str]) -> None:
    """Refuse the names of built-in voices, and what looks like an id.

    Args:
        built_in: case-folded.

    Raises:
        InvalidRequest: the name is reserved.
    """
    folded = name.casefold()
    if folded in built_in or folded in _RESERVED or folded.startswith((VOICE, CONSENT)):
        raise InvalidRequest(
            f"Invalid value for 'name': {name!r} is reserved.", code="reserved_voice_name", param="name"
        )


def tenant_token(tenant: str) -> str:
    """A tenant as a part of a key: names of API keys are free text."""
    return hashlib.blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def voice_id(tenant: str, name: str) -> str:
    """The id of a tenant's voice of that name, in whatever case: one name, one id, so that a name is taken once."""
    folded = unicodedata.normalize("NFC", name).casefold()
    owned = f"{tenant}\0{folded}".encode("utf-8", "surrogatepass")
    return VOICE + hashlib.blake2b(owned, digest_size=_DIGITS // 2).hexdigest()


def new_consent_id() -> str:
    return CONSENT + secrets.token_hex(_DIGITS // 2)


def is_id(text: str) -> bool:
    """Whether it looks like an id that was given here; anything else could not be a key."""
    return _ID.fullmatch(text) is not None
