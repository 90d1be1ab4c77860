"""Voices and consents of tenants: on both kinds of bus, whatever happens on the way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.errors import InvalidRequest, NotFound, OmnistageError
from omnistage.testing.servers import nats_server
from omnistage.transport import Bus, connect
from omnistage.transport.memory import MemoryBroker, MemoryBus
from omnistage_gateway.audio.recording import Recording
from omnistage_gateway.voices import StoredEmbedding, StoredSound, StoredVoice, VoiceLibrary, VoiceLimits
from omnistage_gateway.voices.library import VOICES_BUCKET, VoiceExists
from omnistage_gateway.voices.names import checked_name, is_id, voice_id
from omnistage_gateway.voices.records import recording_of, sound_of
from omnistage_gateway.voices.shelf import PENDING_S, Shelf

SOUND = StoredSound(samples=b"\1\2" * 200_000, sample_rate_hz=24_000)
NOBODY: frozenset[str] = frozenset()


def voice(name: str, **fields: Any) -> StoredVoice:
    return StoredVoice(id="", name=name, created_at=0, **{"type": "audio_sample", "consent": "given"} | fields)


@pytest.fixture(params=["memory", "jetstream"])
async def make_bus(request: pytest.FixtureRequest) -> AsyncIterator[Callable[[], Any]]:
    """Makes buses of one broker: one for each gateway."""
    buses: list[Bus] = []
    if request.param == "memory":
        broker = MemoryBroker()

        async def make() -> Bus:
            buses.append(MemoryBus(broker, "t"))
            return buses[-1]

        yield make
    else:
        async with nats_server() as server:

            async def make() -> Bus:
                buses.append(await connect(server.url, namespace="t", name="gateway"))
                return buses[-1]

            yield make
            for bus in buses:
                await bus.close()
            buses.clear()
    for bus in buses:
        await bus.close()


async def test_a_voice_is_there_on_every_gateway_at_once_and_gone_at_once(make_bus: Any) -> None:
    first, second = await VoiceLibrary.open(await make_bus()), await VoiceLibrary.open(await make_bus())
    made = await first.add_voice("a", voice("Anna", text="Hello."), SOUND, NOBODY)
    assert is_id(made.id)
    found = await second.find_voice("a", "anna")
    assert found == made == await second.find_voice("a", made.id)
    assert found is not None
    assert (found.name, found.text, found.complete) == ("Anna", "Hello.", True)
    assert await second.content(found) == SOUND
    await second.remove_voice("a", "ANNA")
    assert await first.find_voice("a", "Anna") is None
    assert await first.voices("a") == []
    with pytest.raises(NotFound):
        await first.content(found)
    bus = await make_bus()
    assert await (await bus.object_store(VOICES_BUCKET)).names() == []
    assert await (await bus.key_value(VOICES_BUCKET)).keys() == []


async def test_tenants_see_their_own_alone(make_bus: Any) -> None:
    library = await VoiceLibrary.open(await make_bus())
    mine = await library.add_voice("a", voice("Anna"), SOUND, NOBODY)
    theirs = await library.add_voice("b", voice("Anna"), StoredEmbedding(values=b"\0" * 4096), NOBODY)
    assert mine.id != theirs.id
    assert [found.id for found in await library.voices("a")] == [mine.id]
    assert await library.find_voice("b", mine.id) is None
    with pytest.raises(NotFound):
        await library.remove_voice("b", mine.id)
    consent = await library.add_consent("a", "Anna", "de-DE", b"bytes")
    with pytest.raises(NotFound):
        await library.consent("b", consent.id)
    with pytest.raises(InvalidRequest) as caught:
        await library.add_voice("b", voice("Berta", consent=consent.id), SOUND, NOBODY)
    assert (caught.value.code, caught.value.param) == ("consent_not_found", "consent")
    assert (await library.add_voice("a", voice("Berta", consent=consent.id), SOUND, NOBODY)).consent == consent.id


async def test_one_of_many_gets_a_name(make_bus: Any) -> None:
    bus = await make_bus()
    library = await VoiceLibrary.open(bus)
    names = ["Anna", "anna", "ANNA", "Ánna", "A\u0301nna"]
    results = await asyncio.gather(
        *(library.add_voice("a", voice(name), SOUND, NOBODY) for name in names), return_exceptions=True
    )
    kept = [result for result in results if isinstance(result, StoredVoice)]
    assert len(kept) == 2, "with and without the accent"
    assert sum(isinstance(result, VoiceExists) for result in results) == 3
    assert len(await library.voices("a")) == len(await (await bus.object_store(VOICES_BUCKET)).names()) == 2


async def test_the_limit_holds_and_leaves_nothing(make_bus: Any) -> None:
    bus = await make_bus()
    library = await VoiceLibrary.open(bus, VoiceLimits(voices=2, consents=1))
    for name in ("one", "two"):
        await library.add_voice("a", voice(name), SOUND, NOBODY)
    with pytest.raises(InvalidRequest) as caught:
        await library.add_voice("a", voice("three"), SOUND, NOBODY)
    assert caught.value.code == "too_many_voices"
    assert [found.name for found in await library.voices("a")] == ["one", "two"]
    assert len(await (await bus.object_store(VOICES_BUCKET)).names()) == 2
    await library.add_voice("b", voice("three"), SOUND, NOBODY)
    await library.remove_voice("a", "one")
    await library.add_voice("a", voice("three"), SOUND, NOBODY)
    await library.add_consent("a", "c", "en", b"x")
    with pytest.raises(InvalidRequest):
        await library.add_consent("a", "d", "en", b"x")


async def test_consents_are_kept_renamed_and_removed(make_bus: Any) -> None:
    library = await VoiceLibrary.open(await make_bus())
    made = await library.add_consent("a", "Anna", "de-DE", b"bytes")
    assert await library.consent("a", made.id) == made
    assert (await library.rename_consent("a", made.id, "Berta")).name == "Berta"
    assert [consent.name for consent in await library.consents("a")] == ["Berta"]
    await library.remove_consent("a", made.id)
    assert await library.consents("a") == []
    for missing in (made.id, "cons_", "../etc", "a.b.>", "*", ""):
        with pytest.raises(NotFound):
            await library.consent("a", missing)
        with pytest.raises(NotFound):
            await library.remove_consent("a", missing)
        with pytest.raises(NotFound):
            await library.rename_consent("a", missing, "x")


class Failing:
    """A bucket of objects that breaks in the middle of writing."""

    def __init__(self, inner: Any, error: BaseException) -> None:
        self._inner = inner
        self._error = error

    async def put(self, name: str, data: bytes) -> None:
        await self._inner.put(name, data[: len(data) // 2])
        raise self._error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


@pytest.mark.parametrize("error", [OmnistageError("full"), asyncio.CancelledError()])
async def test_a_failed_upload_leaves_nothing(error: BaseException) -> None:
    bus = MemoryBus(MemoryBroker(), "t")
    bucket, objects = await bus.key_value("v"), await bus.object_store("v")
    shelf = Shelf(StoredVoice, bucket, Failing(objects, error))
    record = StoredVoice(id=voice_id("a", "x"), name="x", created_at=0, type="audio_sample")
    with pytest.raises(type(error)):
        await shelf.add("a", record, b"content")
    assert (await bucket.keys(), await objects.names()) == ([], [])


async def test_what_a_crash_left_is_cleared_away() -> None:
    """A gateway that is killed while it writes runs no clean-up: the record alone tells of it."""
    bus = MemoryBus(MemoryBroker(), "t")
    bucket, objects = await bus.key_value("v"), await bus.object_store("v")
    now = 1000.0

    class Killed(Failing):
        async def delete(self, name: str) -> None:
            raise OmnistageError("dead")

    record = StoredVoice(id=voice_id("a", "x"), name="x", created_at=1000, type="audio_sample")
    with pytest.raises(OmnistageError):
        await Shelf(StoredVoice, bucket, Killed(objects, OmnistageError("dead"))).add("a", record, b"content")
    shelf = Shelf(StoredVoice, bucket, objects, lambda: now)
    assert await shelf.get("a", record.id) is None, "half a voice is none"
    assert await shelf.all("a") == []
    assert await shelf.add("a", record, b"content") is None, "it may still be coming"
    assert not await shelf.remove("a", record.id)
    assert len(await objects.names()) == 1
    now += PENDING_S + 1
    assert await shelf.all("a") == []
    assert (await bucket.keys(), await objects.names()) == ([], [])
    assert await shelf.add("a", record, b"content") is not None


async def test_removing_at_the_same_time_removes_once(make_bus: Any) -> None:
    library = await VoiceLibrary.open(await make_bus())
    await library.add_voice("a", voice("x"), SOUND, NOBODY)
    results = await asyncio.gather(*(library.remove_voice("a", "x") for _ in range(4)), return_exceptions=True)
    assert sum(isinstance(result, StoredVoice) for result in results) == 1


@pytest.mark.parametrize(
    "name", ["a", "Anna", "José", "李雷", "voice 2", "o'Neil", "a.b", "x" * 64, "Анна-Мария", "v_1", "5"]
)
def test_names_that_are_allowed(name: str) -> None:
    assert checked_name(name) == name


BAD_NAMES = [
    *("", " ", " a", "a ", ".", "..", "a..b", "../../etc/passwd", "a/b", "a\\b", "-a", "_a", "a\0", "a\n", "a\u200b"),
    *("x" * 65, "a*", "a>", "<b>", '"', "\u202ea", "a\u2028", "\ud800"),
]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_are_not(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        checked_name(name)
    assert caught.value.param == "name"


@pytest.mark.parametrize("name", ["Heart", "alloy", "Default", "voice_1", "CONS_x"])
async def test_names_that_are_reserved(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        await VoiceLibrary.in_memory().add_voice("a", voice(name), SOUND, frozenset({"heart"}))
    assert caught.value.code == "reserved_voice_name"


@given(st.text(max_size=80))
def test_any_text_may_be_asked_for(name: str) -> None:
    async def ask() -> None:
        assert await VoiceLibrary.in_memory().find_voice(name.encode("utf-8", "replace").decode(), name) is None

    asyncio.run(ask())


def test_a_recording_is_kept_as_it_is() -> None:
    recording = Recording((np.arange(50_000) % 7 - 3).astype(np.int16), 44_100)
    back = recording_of(sound_of(recording))
    assert np.array_equal(back.samples, recording.samples)
    assert back.sample_rate_hz == 44_100
