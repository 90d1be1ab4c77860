"""Recognizing a client that comes back with a request that was refused."""

from __future__ import annotations

import hashlib

from fastapi import Request
from pydantic import BaseModel


def retry_key(request: Request, body: BaseModel) -> str:
    """The same for the same body from the same address under the same API key; tells nothing about any of them."""
    host = request.client.host if request.client is not None else ""
    parts = (request.state.tenant, host, body.model_dump_json())
    return hashlib.blake2b("\0".join(parts).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()
