"""Broken messages: golden and real ones with bytes flipped, cut, or fields made absurd."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st

GOLDEN = Path(__file__).parents[1] / "contract" / "golden"

ABSURD: tuple[Any, ...] = (
    None, True, -1, 0, 2**31 + 1, 2**63 - 1, 2**64 - 1, -(2**63), float("nan"), float("inf"), -1e308, "", "x" * 5000,
    "../../etc/passwd", "a.b", "*", ">", "\u0000", "\U0001f600" * 50, b"", b"\xff" * 64, [], [[]], [-1], [2**40, 2**40],
    {}, {"": ""}, {"talker": "../x"},
)  # fmt: skip
"""Values that no field expects; some fit a field's type and are wrong in another way."""

HEADERS: tuple[tuple[str, str], ...] = (
    ("omni-deadline", "nan"),
    ("omni-deadline", "inf"),
    ("omni-deadline", "-1e300"),
    ("omni-deadline", "soon"),
    ("omni-deadline", "9" * 400),
    ("omni-contract", "-5"),
    ("omni-contract", "0x1"),
    ("omni-contract", "9" * 5000),
    ("omni-tenant", "t" * 3000),
    ("omni-priority", "no such priority"),
    ("omni-gateway", "../../x"),
    ("omni-sent", "nan"),
    ("omni-sent", "-1e308"),
    ("traceparent", "00-zz-zz-zz"),
    ("traceparent", "x" * 3000),
    ("tracestate", ",,,=,"),
)
"""Forged headers."""


class Body(bytes):
    """Bytes of a message that a failing test shows in a few characters."""

    def __repr__(self) -> str:
        return f"<{len(self)} bytes: {bytes(self[:60])!r}>"


def golden() -> list[bytes]:
    """Every golden message of every version."""
    return [path.read_bytes() for path in sorted(GOLDEN.glob("*/*.msgpack"))]


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for key, entry in entries for place in ((*path, key), *_paths(entry, (*path, key)))]


@st.composite
def field_mutation(draw: st.DrawFn, body: bytes) -> bytes:
    """The message with one to three fields replaced, removed or added."""
    value = msgspec.msgpack.decode(body)
    for _ in range(draw(st.integers(1, 3))):
        *parents, last = draw(st.sampled_from(_paths(value)))
        holder = value
        for key in parents:
            holder = holder[key]
        if draw(st.booleans()) and isinstance(holder, dict):
            holder["unheard_of"] = deepcopy(draw(st.sampled_from(ABSURD)))
        if draw(st.integers(0, 3)) == 0 and isinstance(holder, dict):
            del holder[last]
        else:
            holder[last] = deepcopy(draw(st.sampled_from(ABSURD)))
        if not _paths(value):
            break
    return msgspec.msgpack.encode(value)


@st.composite
def byte_mutation(draw: st.DrawFn, body: bytes) -> bytes:
    """The message with bytes cut, flipped or put in."""
    data = bytearray(body)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        what = draw(st.sampled_from(["cut", "flip", "insert", "repeat"]))
        if what == "cut":
            del data[at : at + draw(st.integers(1, 16))]
        elif what == "flip" and data:
            data[at] ^= draw(st.integers(1, 255))
        elif what == "insert":
            data[at:at] = draw(st.binary(min_size=1, max_size=16))
        else:
            data[at:at] = data[at : at + 32]
    return bytes(data)


def broken(bodies: list[bytes]) -> st.SearchStrategy[bytes]:
    """A broken message made of one of these, or of nothing at all."""
    real = st.sampled_from(bodies)
    deep = st.just(b"\x91" * 100_000 + b"\xc0")
    made: st.SearchStrategy[bytes] = st.one_of(
        real.flatmap(field_mutation),
        real.flatmap(field_mutation),
        real.flatmap(byte_mutation),
        st.binary(max_size=64),
        st.sampled_from(golden()),
        deep,
    )
    return made.map(Body)
