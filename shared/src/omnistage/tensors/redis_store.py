"""Tensors between hosts: one key per block on a Redis-protocol server, gone by itself when its lease ends.

A block's key is `<namespace>:t:<request_id>:<writer>:<generation>`; the writer's name is random, so keys are never
used twice. The server must refuse writes when it is full (maxmemory-policy noeviction): an evicted block is a lost
chunk.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import numpy as np
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff
from redis.exceptions import AuthenticationError, OutOfMemoryError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from omnistage.contracts import TensorRef
from omnistage.errors import ConfigError, TensorError, TensorGone, TensorStoreFull, TensorUnavailable
from omnistage.tensors.store import Array, checksum, run_copy, to_bytes, verified

_log = logging.getLogger(__name__)

TIMEOUT_S = 5.0

_CONNECTIONS = 32
_READ_BYTES = 1 << 20
_RETRIES = 2


class RedisTensorStore:
    """The tensor protocol over a Redis client. Use it on one event loop; make it with `open`.

    Args:
        client: bytes in, bytes out (decode_responses=False).
        namespace: of the deployment; the first part of every key.
        capacity_bytes: the server's memory limit, 0 if it has none.
        timeout_s: after this time the client gives a write up and sends it again.
    """

    def __init__(self, client: Redis, *, namespace: str, capacity_bytes: int = 0, timeout_s: float = TIMEOUT_S) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._prefix = f"{namespace}:t:"
        self._capacity_bytes = capacity_bytes
        self._writer = secrets.token_hex(6)
        self._generations = itertools.count(2, 2)
        self._own: dict[str, dict[str, TensorRef]] = {}
        self._unsure: set[str] = set()
        """Of these keys a write may still be under way, on a connection that was given up."""
        self._late: dict[str, float] = {}
        """Those whose request is over -> the end of their lease."""
        self._is_closed = False

    @classmethod
    async def open(cls, url: str, *, namespace: str, timeout_s: float = TIMEOUT_S) -> RedisTensorStore:
        """Connect, and check that the server keeps what it accepts.

        Args:
            url: redis://, rediss:// or unix:// address.
            namespace: of the deployment.
            timeout_s: for connecting, and for each answer.

        Raises:
            ConfigError: the address or the credentials are wrong.
            TensorUnavailable: no answer.
        """
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=_CONNECTIONS,
                timeout=timeout_s,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                socket_read_size=_READ_BYTES,
                retry=Retry(ExponentialBackoff(cap=0.2, base=0.02), _RETRIES),
            )
        except ValueError:
            # Its text may quote a piece of the password, and so may the chain of errors.
            raise ConfigError(
                "the address of the tensor server is none: redis://, rediss:// or unix://, with reserved characters "
                "of a password percent-encoded"
            ) from None
        client = Redis(connection_pool=pool)
        client.auto_close_connection_pool = True
        try:
            with _mapped_errors(urlsplit(url).hostname or "its socket"):
                await client.ping()
                capacity_bytes = await _check_memory_policy(client)
        except BaseException:
            await client.aclose()
            raise
        return cls(client, namespace=namespace, capacity_bytes=capacity_bytes, timeout_s=timeout_s)

    async def put(self, array: Array, *, request_id: str, lease_s: float) -> TensorRef:
        """See `TensorStore.put`."""
        self._check_open()

        def serialize() -> tuple[bytes, str, tuple[int, ...], int]:
            data, dtype, shape = to_bytes(array)
            return bytes(data), dtype, shape, checksum(data)

        data, dtype, shape, digest = await run_copy(serialize, array.nbytes)
        ref = TensorRef(
            place="redis",
            id=f"{self._prefix}{request_id}:{self._writer}",
            dtype=dtype,
            shape=shape,
            nbytes=len(data),
            generation=next(self._generations),
            checksum=digest,
            lease=time.time() + lease_s,
        )
        # Known before it is sent: a write whose answer is lost may have happened, and must be forgotten with the rest.
        self._own.setdefault(request_id, {})[_key(ref)] = ref
        self._unsure.add(_key(ref))
        began = time.monotonic()
        try:
            with _mapped_errors():
                await self._client.set(_key(ref), data, px=max(1, int(lease_s * 1000)))
        except TensorStoreFull:
            self._unsure.discard(_key(ref))
            self._disown(_key(ref))
            raise
        if time.monotonic() - began < self._timeout_s:
            self._unsure.discard(_key(ref))
        return ref

    async def get(self, ref: TensorRef) -> Array:
        """See `TensorStore.get`."""
        self._check_open()
        if not ref.id.startswith(self._prefix):
            raise TensorGone(f"{ref.id!r} is no block of this namespace")
        with _mapped_errors():
            data: bytes | None = await self._client.get(_key(ref))  # type: ignore[assignment] # as decode_responses is off
        if data is None:
            raise TensorGone(f"block {_key(ref)} is gone")

        def read() -> Array:
            return verified(np.frombuffer(data, np.uint8).copy(), ref)

        return await run_copy(read, len(data))

    async def borrow(self, ref: TensorRef) -> Array:
        """See `TensorStore.borrow`; here it is a copy."""
        return await self.get(ref)

    async def release(self, ref: TensorRef) -> None:
        """See `TensorStore.release`."""
        self._check_open()
        if not ref.id.startswith(self._prefix):
            return
        with _mapped_errors():
            await self._client.unlink(_key(ref))
        self._disown(_key(ref))

    async def forget(self, request_id: str) -> int:
        """See `TensorStore.forget`. Blocks of dead processes stay until the server ends their lease."""
        self._check_open()
        blocks = self._own.get(request_id)
        if not blocks:
            return 0
        known = tuple(blocks)
        with _mapped_errors():
            held = int(await self._client.unlink(*known))
        for key, ref in self._own.pop(request_id, {}).items():
            if key in self._unsure or key not in known:
                self._unsure.discard(key)
                self._late[key] = ref.lease
        return held

    async def sweep(self) -> int:
        """See `TensorStore.sweep`. The server itself ends leases; this counts this process's blocks that are over."""
        self._check_open()
        if self._late:
            with _mapped_errors():
                await self._client.unlink(*self._late)
            now = time.time()
            self._late = {key: lease for key, lease in self._late.items() if lease > now}
        keys = [key for blocks in self._own.values() for key in blocks if not self._is_unsure(key, blocks[key])]
        if not keys:
            return 0
        with _mapped_errors():
            async with self._client.pipeline(transaction=False) as pipeline:
                for key in keys:
                    pipeline.exists(key)
                present = await pipeline.execute()
        gone = [key for key, is_present in zip(keys, present, strict=True) if not is_present]
        for key in gone:
            self._disown(key)
        return len(gone)

    def usage(self) -> tuple[int, int]:
        """See `TensorStore.usage`. Blocks that other processes released count until the next sweep."""
        now = time.time()
        held = sum(ref.nbytes for blocks in self._own.values() for ref in blocks.values() if ref.lease > now)
        return held, self._capacity_bytes

    async def close(self) -> None:
        """See `TensorStore.close`."""
        if not self._is_closed:
            self._is_closed = True
            self._own.clear()
            await self._client.aclose()

    def _is_unsure(self, key: str, ref: TensorRef) -> bool:
        """Whether a write may still come: such a key is not over because it is not there."""
        if key in self._unsure and ref.lease <= time.time():
            self._unsure.discard(key)
        return key in self._unsure

    def _check_open(self) -> None:
        if self._is_closed:
            raise TensorError("the store is closed")

    def _disown(self, key: str) -> None:
        request_id = key.removeprefix(self._prefix).rsplit(":", 2)[0]
        blocks = self._own.get(request_id)
        if blocks is not None and blocks.pop(key, None) is not None and not blocks:
            del self._own[request_id]


def _key(ref: TensorRef) -> str:
    return f"{ref.id}:{ref.generation}"


async def _check_memory_policy(client: Redis) -> int:
    """Warn of a server that would drop blocks when full; returns its memory limit in bytes (0 if none)."""
    try:
        settings = await client.config_get("maxmemory", "maxmemory-policy")
    except ResponseError:
        _log.warning("the tensor server does not show its settings: make sure that maxmemory-policy is noeviction")
        return 0
    policy = settings["maxmemory-policy"]
    if policy != "noeviction":
        _log.warning("the tensor server has maxmemory-policy %s and may drop blocks: set it to noeviction", policy)
    return int(settings["maxmemory"] or 0)


@contextmanager
def _mapped_errors(server: str = "the tensor server") -> Iterator[None]:
    try:
        yield
    except OutOfMemoryError as error:
        raise TensorStoreFull("the tensor server is full") from error
    except AuthenticationError as error:
        raise ConfigError(f"{server} refuses the credentials") from error
    except (RedisConnectionError, RedisTimeoutError, OSError) as error:
        raise TensorUnavailable(f"{server} does not answer: {error}") from error
    except RedisError as error:
        raise TensorError(f"{server} failed: {error}") from error
