"""A client that comes back with the request that was refused is recognized; nobody else is."""

from __future__ import annotations

from typing import Any

import httpx

from omnistage_gateway.keyring import Keyring

SPEAK = {"model": "tts-1", "voice": "alloy", "input": "A text."}
ASK = {"model": "gpt-4o", "messages": [{"role": "user", "content": "Hi"}], "n": 2}


async def keys_of(stand: Any, *requests: tuple[dict[str, Any], str]) -> list[str]:
    transport = httpx.ASGITransport(stand.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        for body, key in requests:
            path = "/v1/audio/speech" if "input" in body else "/v1/chat/completions"
            answer = await client.post(path, json=body, headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == 200
    stand.pool.shutdown()
    return [plan.retry_key for plan in stand.fake.plans]


async def test_the_same_request_again_has_the_same_key(make_stand: Any) -> None:
    stand = make_stand(keyring=Keyring({"a": "one", "b": "two"}))
    other = {**SPEAK, "input": "Another text."}
    first, again, of_another, another = await keys_of(
        stand, (SPEAK, "one"), (SPEAK, "one"), (SPEAK, "two"), (other, "one")
    )
    assert first == again
    assert len({first, of_another, another}) == 3
    assert "A text" not in first


async def test_each_answer_of_a_request_is_recognized_by_itself(make_stand: Any) -> None:
    keys = await keys_of(make_stand(), (ASK, "any"), (ASK, "any"))
    assert len(keys) == 4
    assert len(set(keys)) == 2
