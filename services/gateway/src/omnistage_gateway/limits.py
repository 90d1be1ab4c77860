"""How large, how deep and how slow a request may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds that hold for every endpoint.

    Attributes:
        body_bytes: largest request body.
        read_s: how long a request may stand still while it is being sent.
        json_depth: deepest nesting of a JSON body.
        transcript_s: how long an assistant's audio can be referred to by its id.
    """

    body_bytes: int = 4 * 1024 * 1024
    read_s: float = 30.0
    json_depth: int = 32
    transcript_s: float = 3600.0
