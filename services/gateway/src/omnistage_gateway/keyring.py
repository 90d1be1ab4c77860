"""API keys: who may use the gateway, and in whose name."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

from omnistage.errors import Unauthenticated

ANONYMOUS = "anonymous"


class Keyring:
    """Names of keys -> keys. Without any key everybody may enter.

    Args:
        keys: the name of a key is the tenant in fair shares; it may be logged, the key never is.
    """

    def __init__(self, keys: Mapping[str, str] | None = None) -> None:
        self._digests = {name: _digest(key) for name, key in (keys or {}).items()}

    def tenant(self, authorization: str | None) -> str:
        """The name of the key in an `Authorization` header.

        All keys are compared, each in constant time over digests of equal length, so that the time taken tells
        neither how much of a key was right nor which one.

        Raises:
            Unauthenticated: no key, another scheme than Bearer, or an unknown key.
        """
        if not self._digests:
            return ANONYMOUS
        if not authorization:
            raise Unauthenticated(
                "You didn't provide an API key. Send it as 'Authorization: Bearer YOUR_KEY'.", code="missing_api_key"
            )
        scheme, _, key = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise Unauthenticated("The Authorization header must have the form 'Bearer YOUR_KEY'.")
        offered = _digest(key.strip())
        matches = [name for name, digest in self._digests.items() if hmac.compare_digest(digest, offered)]
        if not matches:
            raise Unauthenticated("Incorrect API key provided.")
        return matches[0]


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
