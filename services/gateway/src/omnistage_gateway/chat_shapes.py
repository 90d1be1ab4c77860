"""The JSON of chat answers, in OpenAI's shapes: pure functions."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omnistage.contracts import TokenLogprob
from omnistage_gateway.answer import to_json

_PADDED_TO = 64
"""Padded chunks are multiples of so many bytes."""


@dataclass(frozen=True)
class Head:
    """What every chunk of an answer repeats."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    def completion(self, choices: list[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        """A whole answer."""
        return {**self._fields("chat.completion"), "choices": choices, "usage": usage}

    def chunk(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """A piece of an answer."""
        return {**self._fields("chat.completion.chunk"), "choices": choices}

    def _fields(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
            "service_tier": "default",
        }


def choice_piece(
    index: int, delta: dict[str, Any], *, logprobs: dict[str, Any] | None = None, finish_reason: str | None = None
) -> dict[str, Any]:
    """A choice within a chunk."""
    return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish_reason}


def logprobs_of(tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Log-probabilities of an answer or a piece of it."""
    return {
        "content": [{**_token(token), "top_logprobs": [_token(t) for t in token.top]} for token in tokens],
        "refusal": None,
    }


def _token(token: TokenLogprob) -> dict[str, Any]:
    return {"token": token.token, "logprob": token.logprob, "bytes": list(token.data)}


def padded(chunk: dict[str, Any]) -> dict[str, Any]:
    """The chunk with an `obfuscation` field that hides how long its text is."""
    bare = len(to_json({**chunk, "obfuscation": ""}))
    missing = -bare % _PADDED_TO
    return {**chunk, "obfuscation": secrets.token_urlsafe(missing)[:missing]}
