"""What every key-value and object bucket must do."""

from __future__ import annotations

import asyncio

import pytest

from omnistage.errors import ConfigError
from omnistage.testing.bus_conformance.steps import (
    Conformance,
    Pair,
    eventually,
)


class StoreConformance(Conformance):
    """What every key-value and object bucket must do."""

    async def test_key_value(self, bus_pair: Pair) -> None:
        a, b = await bus_pair[0].key_value("jobs"), await bus_pair[1].key_value("jobs")
        assert await b.get("x") is None
        first = await a.put("x", b"1")
        assert await b.get("x") == (b"1", first)
        second = await b.put("x", b"")
        assert second > first
        assert await a.get("x") == (b"", second)
        await a.put("dotted.key_1-A", b"2")
        assert await b.keys() == ["dotted.key_1-A", "x"]
        await a.delete("x")
        await a.delete("never")
        assert await b.get("x") is None
        assert await b.keys() == ["dotted.key_1-A"]

    async def test_create_and_update_are_conditional(self, bus_pair: Pair) -> None:
        a, b = await bus_pair[0].key_value("jobs"), await bus_pair[1].key_value("jobs")
        revision = await a.create("x", b"1")
        assert revision is not None
        assert await b.create("x", b"2") is None
        newer = await b.update("x", b"3", revision)
        assert newer is not None
        assert await a.update("x", b"4", revision) is None
        assert await a.update("absent", b"4", revision) is None
        assert await a.get("x") == (b"3", newer)
        await b.delete("x")
        assert await a.create("x", b"5") is not None

    async def test_only_one_of_many_creates(self, bus_pair: Pair) -> None:
        stores = [await bus.key_value("jobs") for bus in bus_pair]
        outcomes = await asyncio.gather(*(stores[n % 2].create("x", b"%d" % n) for n in range(12)))
        assert sum(revision is not None for revision in outcomes) == 1

    async def test_entries_expire(self, bus_pair: Pair) -> None:
        short = await bus_pair[0].key_value("presence", ttl_s=0.5)
        lasting = await bus_pair[0].key_value("jobs")
        await short.put("x", b"1")
        await lasting.put("x", b"1")

        async def gone() -> bool:
            return await short.get("x") is None and await short.keys() == []

        await eventually(gone)
        assert await short.create("x", b"2") is not None
        assert await lasting.get("x") is not None

    async def test_odd_keys_are_refused(self, bus_pair: Pair) -> None:
        store = await bus_pair[0].key_value("jobs")
        for key in ("", "a b", "a.*", ">", ".a", "a.", "a..b", "é"):
            with pytest.raises(ConfigError):
                await store.put(key, b"")
            with pytest.raises(ConfigError):
                await store.get(key)

    async def test_objects(self, bus_pair: Pair) -> None:
        a, b = await bus_pair[0].object_store("voices"), await bus_pair[1].object_store("voices")
        big = bytes(range(256)) * 5000
        assert await b.get("my voice.wav") is None
        await a.put("my voice.wav", big)
        await a.put("é/empty", b"")
        assert await b.get("my voice.wav") == big
        assert await b.get("é/empty") == b""
        assert await b.names() == ["my voice.wav", "é/empty"]
        await b.put("my voice.wav", big[:1000])
        assert await a.get("my voice.wav") == big[:1000]
        await a.delete("my voice.wav")
        await a.delete("never")
        assert await b.get("my voice.wav") is None
        assert await b.names() == ["é/empty"]
