"""References that somebody has made up: they read nothing but what they name rightly, free nothing, break nothing."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnistage.contracts import Inline, TensorRef
from omnistage.errors import TensorCorrupt, TensorError, TensorGone
from omnistage.tensors import ShmTensorStore, TensorPlane
from omnistage.tensors.memory import MemoryTensorStore
from omnistage.tensors.redis_store import RedisTensorStore

NUMBERS = st.sampled_from([-(2**63), -1, 0, 1, 4095, 4096, 8192, 2**31, 2**40, 2**62, 2**63 - 1, 2**64 - 1])
DTYPES = st.sampled_from(
    ["float32", "int8", "O", "object", "V8", "U4", "f4,f4", "(100000000,)f4", ",", "", "datetime64[s]", "\0",
     "x" * 5000, ">f4", "{'names': ['a'], 'formats': ['O']}", "datetime64", "void", "float99", "i4;import os"]
)  # fmt: skip
SHAPES = st.sampled_from(
    [(), (0,), (-1,), (-1, -1), (1024,), (2**62,), (2**32, 2**32), (1,) * 70, (-2, -512), (1024, 0), (0, -5), (512, 2)]
)
IDS = st.sampled_from(
    ["", "..", "../../../etc/passwd", "/etc/passwd", "t.x.0000000000000000.arena", "other:t:r:w", "t:t:", "\0", "*",
     "t:t:../..", "x" * 5000]
)  # fmt: skip

CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "place": st.sampled_from(["memory", "shm", "redis"]),
    "id": IDS,
    "offset": NUMBERS,
    "dtype": DTYPES,
    "shape": SHAPES,
    "nbytes": NUMBERS,
    "generation": NUMBERS,
    "checksum": NUMBERS,
    "lease": st.sampled_from([float("nan"), float("inf"), -1.0, 0.0]),
}
changes = st.sets(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=3).flatmap(
    lambda names: st.fixed_dictionaries({name: CHANGES[name] for name in sorted(names)})
)

WHAT_IT_SAYS = np.arange(1024, dtype=np.float32)
many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@asynccontextmanager
async def opened(kind: str, folder: Path, redis_url: str) -> AsyncIterator[TensorPlane]:
    """A plane of one store, in which every array has a block."""
    async with AsyncExitStack() as stack:
        store: Any
        if kind == "shm":
            store = await ShmTensorStore.open(folder, namespace="t", instance="i", capacity_bytes=1 << 20)
            plane = TensorPlane(near=store, inline_limit_bytes=0)
        elif kind == "redis":
            store = await RedisTensorStore.open(redis_url, namespace="t")
            plane = TensorPlane(near=None, far=store, inline_limit_bytes=0)
        else:
            plane = TensorPlane(near=MemoryTensorStore(), inline_limit_bytes=0)
        stack.push_async_callback(plane.close)
        yield plane
        await plane.forget("r")


@pytest.mark.parametrize("kind", ["shm", "memory", "redis"])
@many
@given(changes, st.booleans())
async def test_a_forged_reference_is_gone_or_corrupt(
    kind: str, folder: Path, redis_url: str, change: dict[str, Any], borrow: bool
) -> None:
    async with opened(kind, folder, redis_url) as plane:
        ref = await plane.pack(WHAT_IT_SAYS, request_id="r", lease_s=60.0)
        assert isinstance(ref, TensorRef)
        forged = msgspec.structs.replace(ref, **change)
        with contextlib.suppress(TensorGone, TensorCorrupt):
            array = await plane.unpack(forged, borrow=borrow)
            # Where it is right in spite of all, it is the block's own bytes.
            assert array.tobytes() == WHAT_IT_SAYS.tobytes()
        assert np.array_equal(await plane.unpack(ref), WHAT_IT_SAYS)


@pytest.mark.parametrize("kind", ["shm", "memory", "redis"])
@many
@given(changes)
async def test_releasing_a_forged_reference_frees_no_block_of_another(
    kind: str, folder: Path, redis_url: str, change: dict[str, Any]
) -> None:
    async with opened(kind, folder, redis_url) as plane:
        ref, other = [await plane.pack(WHAT_IT_SAYS, request_id="r", lease_s=60.0) for _ in range(2)]
        assert isinstance(ref, TensorRef)
        with contextlib.suppress(TensorError):
            await plane.release(msgspec.structs.replace(ref, **change))
        assert np.array_equal(await plane.unpack(other), WHAT_IT_SAYS)


@many
@given(st.binary(max_size=64), DTYPES, SHAPES)
async def test_an_inline_payload_that_does_not_fit_is_corrupt(data: bytes, dtype: str, shape: tuple[int, ...]) -> None:
    plane = TensorPlane(near=MemoryTensorStore())
    with contextlib.suppress(TensorCorrupt):
        array = await plane.unpack(Inline(data=data, dtype=dtype, shape=shape))
        assert array.tobytes() == data
        assert array.dtype.kind in "biufc"
