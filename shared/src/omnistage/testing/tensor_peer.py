"""A process with a tensor store of its own, told what to do line by line: for tests and benchmarks of the tensor plane.

    python -m omnistage.testing.tensor_peer shm FOLDER CAPACITY_BYTES
    python -m omnistage.testing.tensor_peer redis URL

Each line in is a JSON object {"do": command, ...}, each line out its result.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
import numpy as np

from omnistage.contracts import TensorRef
from omnistage.errors import TensorError
from omnistage.tensors.redis_store import RedisTensorStore
from omnistage.tensors.shm import ShmTensorStore
from omnistage.tensors.store import Array, TensorStore, checksum, to_bytes

NAMESPACE = "peers"
LEASE_S = 60.0


def pattern(nbytes: int, seed: int) -> Array:
    """Bytes that both sides can make."""
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


class Peer:
    """The other side: a running peer process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def call(self, do: str, **arguments: Any) -> Any:
        """Have the peer do one thing; its result, with references as JSON objects."""
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode({"do": do, **arguments}) + b"\n")
        await self._process.stdin.drain()
        return await self.line()

    async def put(self, nbytes: int, *, seed: int = 0, request_id: str = "r", lease_s: float = LEASE_S) -> TensorRef:
        """Have the peer publish `pattern(nbytes, seed)`."""
        result = await self.call("put", nbytes=nbytes, seed=seed, request_id=request_id, lease_s=lease_s)
        return msgspec.convert(result, TensorRef)

    async def line(self) -> Any:
        """The next result.

        Raises:
            EOFError: the peer has ended.
        """
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise EOFError("the peer has ended")
        return msgspec.json.decode(line)

    async def kill(self) -> None:
        """SIGKILL, and wait until the kernel has taken everything back."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    @property
    def pid(self) -> int:
        """Of the peer's process."""
        return self._process.pid


class Peers:
    """Starts peers; all are dead when the context ends."""

    def __init__(self) -> None:
        self._started: list[Peer] = []

    async def start(self, *place: str | Path | int) -> Peer:
        """A peer at a place given as on the command line, ready."""
        return await self.start_command(sys.executable, "-m", "omnistage.testing.tensor_peer", *map(str, place))

    async def start_command(self, *command: str) -> Peer:
        """A peer that is a program of the caller's, which calls `serve`; ready."""
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        peer = Peer(process)
        self._started.append(peer)
        await peer.line()
        return peer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for peer in self._started:
            await peer.kill()


async def _put(store: TensorStore, asked: dict[str, Any]) -> Any:
    array = pattern(asked["nbytes"], asked["seed"])
    return await store.put(array, request_id=asked["request_id"], lease_s=asked["lease_s"])


async def _get(store: TensorStore, asked: dict[str, Any]) -> Any:
    array = await store.get(msgspec.convert(asked["ref"], TensorRef))
    return {"checksum": checksum(to_bytes(array)[0]), "nbytes": array.nbytes}


async def _release(store: TensorStore, asked: dict[str, Any]) -> Any:
    await store.release(msgspec.convert(asked["ref"], TensorRef))
    return True


async def _forget(store: TensorStore, asked: dict[str, Any]) -> Any:
    return await store.forget(asked["request_id"])


async def _sweep(store: TensorStore, asked: dict[str, Any]) -> Any:
    return await store.sweep()


async def _usage(store: TensorStore, asked: dict[str, Any]) -> Any:
    return store.usage()[0]


async def _allocate(store: TensorStore, asked: dict[str, Any]) -> Any:
    """Begin a block and never publish it, as a writer does that dies in the middle."""
    assert isinstance(store, ShmTensorStore)
    partition = store.partition
    span = partition.allocate(asked["nbytes"])
    assert span is not None
    partition.view.begin(span)
    partition.view.data(span)[: asked["nbytes"] // 2] = 0xAA
    return partition.view.offset(span.unit)


async def _churn(store: TensorStore, asked: dict[str, Any]) -> Any:
    """Publish block after block, each filled with its own number, and take each back when the next one is out."""
    previous: TensorRef | None = None
    number = 0
    while True:
        number += 1
        array = np.full(asked["nbytes"] // 4, number, np.uint32)
        ref = await store.put(array, request_id="churn", lease_s=LEASE_S)
        if previous is not None:
            await store.release(previous)
        previous = ref
        _answer(ref)


async def _echo(store: TensorStore, asked: dict[str, Any]) -> Any:
    """Read a block, release it, and publish what was read: one half of a round trip."""
    ref = msgspec.convert(asked["ref"], TensorRef)
    array = await store.get(ref)
    await store.release(ref)
    return await store.put(array, request_id=asked["request_id"], lease_s=LEASE_S)


_COMMANDS: dict[str, Callable[[TensorStore, dict[str, Any]], Awaitable[Any]]] = {
    "put": _put,
    "get": _get,
    "release": _release,
    "forget": _forget,
    "sweep": _sweep,
    "usage": _usage,
    "allocate": _allocate,
    "churn": _churn,
    "echo": _echo,
}


def _answer(result: Any) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(result) + b"\n")
    sys.stdout.buffer.flush()


async def _open(place: list[str]) -> TensorStore:
    if place[0] == "shm":
        return await ShmTensorStore.open(
            Path(place[1]), namespace=NAMESPACE, instance="peer", capacity_bytes=int(place[2])
        )
    return await RedisTensorStore.open(place[1], namespace=NAMESPACE)


async def serve(store: TensorStore) -> None:
    """Do what the lines of standard input ask with this store, until they end."""
    _answer("ready")
    while line := await asyncio.to_thread(sys.stdin.buffer.readline):
        asked = msgspec.json.decode(line)
        try:
            _answer(await _COMMANDS[asked["do"]](store, asked))
        except TensorError as error:
            _answer({"error": error.code})
    await store.close()


async def _main(place: list[str]) -> None:
    await serve(await _open(place))


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
