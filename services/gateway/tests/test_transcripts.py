"""Both keepers of transcripts behave alike."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from omnistage_gateway.transcripts import MemoryTranscripts, SharedTranscripts, Transcripts, is_audio_id


class Bucket:
    """A key-value bucket in a dictionary that refuses keys the bus would refuse."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def _check(self, key: str) -> None:
        assert all(char.isascii() and (char.isalnum() or char in "_-.") for char in key), key

    async def put(self, key: str, value: bytes) -> int:
        self._check(key)
        self.kept[key] = value
        return len(self.kept)

    async def create(self, key: str, value: bytes) -> int | None:
        return None if key in self.kept else await self.put(key, value)

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        return await self.put(key, value)

    async def get(self, key: str) -> tuple[bytes, int] | None:
        self._check(key)
        return (self.kept[key], 1) if key in self.kept else None

    async def delete(self, key: str) -> None:
        self.kept.pop(key, None)

    async def keys(self) -> list[str]:
        return list(self.kept)


now = 1000.0


@pytest.fixture(params=["memory", "shared"])
def kept(request: pytest.FixtureRequest) -> Transcripts:
    clock: Callable[[], float] = lambda: now  # noqa: E731 - the clock that both take
    return MemoryTranscripts(clock=clock) if request.param == "memory" else SharedTranscripts(Bucket(), clock)


async def test_kept_until_it_expires(kept: Transcripts, monkeypatch: pytest.MonkeyPatch) -> None:
    await kept.put("audio_1", "Grüße, \U0001f600", 1010.0)
    assert await kept.get("audio_1") == "Grüße, \U0001f600"
    assert await kept.get("audio_2") is None
    monkeypatch.setitem(globals(), "now", 1010.0)
    assert await kept.get("audio_1") is None


@pytest.mark.parametrize("name", ["", "x", "audio_ä", "audio_a b", "audio_>", "audio_" + "a" * 200, "audio_../b"])
async def test_ids_that_we_never_gave_are_unknown(kept: Transcripts, name: str) -> None:
    assert await kept.get(name) is None
    assert not is_audio_id(name)


async def test_memory_forgets_the_oldest_first() -> None:
    kept = MemoryTranscripts(capacity=2, clock=lambda: 0.0)
    for number in range(3):
        await kept.put(f"audio_{number}", str(number), 10.0)
    assert [await kept.get(f"audio_{number}") for number in range(3)] == [None, "1", "2"]
