"""The three stores under the one suite."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
import redis.asyncio

from omnistage.contracts import TensorRef
from omnistage.tensors import MemorySpace, MemoryTensorStore, RedisTensorStore, ShmTensorStore
from omnistage.testing.tensor_conformance import TensorStoreConformance

MIB = 1 << 20


class TestMemory(TensorStoreConformance):
    @pytest.fixture
    def space(self) -> MemorySpace:
        return MemorySpace()

    @pytest.fixture
    def store(self, space: MemorySpace) -> MemoryTensorStore:
        return MemoryTensorStore(space)

    @pytest.fixture
    def peer(self, space: MemorySpace) -> MemoryTensorStore:
        return MemoryTensorStore(space)

    @pytest.fixture
    def small(self) -> MemoryTensorStore:
        return MemoryTensorStore(capacity_bytes=8 * MIB)

    @pytest.fixture
    def corrupt(self, space: MemorySpace) -> Callable[[TensorRef], None]:
        return space.corrupt


class TestShm(TensorStoreConformance):
    async def _open(self, folder: Path, instance: str, capacity_bytes: int) -> ShmTensorStore:
        return await ShmTensorStore.open(
            folder, namespace="t", instance=instance, capacity_bytes=capacity_bytes, full_wait_s=0.01
        )

    @pytest.fixture
    async def store(self, folder: Path) -> AsyncIterator[ShmTensorStore]:
        opened = await self._open(folder, "store", 40 * MIB)
        yield opened
        await opened.close()

    @pytest.fixture
    async def peer(self, folder: Path) -> AsyncIterator[ShmTensorStore]:
        opened = await self._open(folder, "peer", 40 * MIB)
        yield opened
        await opened.close()

    @pytest.fixture
    async def small(self, folder: Path) -> AsyncIterator[ShmTensorStore]:
        opened = await self._open(folder, "small", 8 * MIB)
        yield opened
        await opened.close()

    @pytest.fixture
    def corrupt(self, folder: Path) -> Callable[[TensorRef], None]:
        def flip(ref: TensorRef) -> None:
            with (folder / ref.id).open("r+b") as file:
                file.seek(ref.offset + ref.nbytes - 1)
                byte = file.read(1)[0]
                file.seek(ref.offset + ref.nbytes - 1)
                file.write(bytes([byte ^ 0x01]))

        return flip


@pytest.mark.integration
class TestRedis(TensorStoreConformance):
    @pytest.fixture
    async def store(self, redis_urls: tuple[str, str]) -> AsyncIterator[RedisTensorStore]:
        opened = await RedisTensorStore.open(redis_urls[0], namespace="t")
        yield opened
        await opened.close()

    @pytest.fixture
    async def peer(self, redis_urls: tuple[str, str]) -> AsyncIterator[RedisTensorStore]:
        opened = await RedisTensorStore.open(redis_urls[0], namespace="t")
        yield opened
        await opened.close()

    @pytest.fixture
    async def small(self, redis_urls: tuple[str, str]) -> AsyncIterator[RedisTensorStore]:
        opened = await RedisTensorStore.open(redis_urls[1], namespace="t")
        yield opened
        await opened.close()

    @pytest.fixture
    def corrupt(self, redis_urls: tuple[str, str]) -> Callable[[TensorRef], Awaitable[None]]:
        async def flip(ref: TensorRef) -> None:
            client = redis.asyncio.Redis.from_url(redis_urls[0])
            key = f"{ref.id}:{ref.generation}"
            data = await client.get(key)
            assert isinstance(data, bytes)
            await client.setrange(key, 0, bytes([data[0] ^ 0x01]))
            await client.aclose()

        return flip
