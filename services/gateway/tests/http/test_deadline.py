"""A client says how long it is willing to wait; the model's own setting is the ceiling."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from omnistage.errors import DeadlineExceeded
from omnistage_gateway.deadline import HEADER

SPEECH = ("/v1/audio/speech", {"model": "tts-1", "voice": "alloy", "input": "A text."})
CHAT = ("/v1/chat/completions", {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}]})


@pytest.mark.parametrize(("path", "body"), [SPEECH, CHAT])
@pytest.mark.parametrize(("asked", "seconds"), [("1500", 1.5), ("1", 0.001), ("999999999", 300.0), (None, 300.0)])
async def test_the_header_shortens_the_models_own_deadline(
    stand: Any, http: httpx.AsyncClient, path: str, body: dict[str, Any], asked: str | None, seconds: float
) -> None:
    answer = await http.post(path, json=body, headers={} if asked is None else {HEADER: asked})
    assert answer.status_code == 200
    assert stand.fake.plans[0].deadline_s == seconds


@pytest.mark.parametrize(("path", "body"), [SPEECH, CHAT])
@pytest.mark.parametrize("asked", ["0", "-5", "1.5", "soon", "", "1e3", "9999999999", "\u00b2"])
async def test_anything_else_is_refused_by_name(
    stand: Any, http: httpx.AsyncClient, path: str, body: dict[str, Any], asked: str
) -> None:
    answer = await http.post(path, json=body, headers=[(HEADER.encode(), asked.encode("latin-1"))])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == HEADER
    assert stand.fake.plans == []


async def test_a_deadline_that_passes_is_a_504_of_its_own_type(stand: Any, http: httpx.AsyncClient) -> None:
    stand.fake.door = DeadlineExceeded("no slot became free before the request's deadline", retry_after_s=3.0)
    answer = await http.post(SPEECH[0], json=SPEECH[1], headers={HEADER: "100"})
    error = answer.json()["error"]
    assert (answer.status_code, error["type"], error["code"]) == (504, "timeout_error", "deadline_exceeded")
    assert answer.headers["retry-after"] == "3"
