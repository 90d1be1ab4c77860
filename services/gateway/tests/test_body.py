"""Strict JSON, by examples and by comparison with the standard library."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnistage.errors import InvalidRequest
from omnistage_gateway.body import parse_json

leaves = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    leaves | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


@given(values, st.booleans())
def test_reads_what_json_writes(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert parse_json(text.encode(), 100) == value


@given(values, st.integers(1, 5))
def test_depth_is_counted_outside_of_texts(value: Any, limit: int) -> None:
    body = json.dumps(value).encode()
    if depth(value) <= limit:
        assert parse_json(body, limit) == value
    else:
        with pytest.raises(InvalidRequest) as caught:
            parse_json(body, limit)
        assert caught.value.code == "json_too_deep"


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(InvalidRequest):
        parse_json(body, 5)


def test_brackets_in_texts_do_not_count() -> None:
    body = json.dumps({"a": '[{"\\' * 1000 + "]" * 9}).encode()
    assert parse_json(body, 1) == {"a": '[{"\\' * 1000 + "]" * 9}


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b'{"a": {"b": 1, "b": 2}}', "duplicate_key", "'b'"),
        (b'{"a": NaN}', "invalid_json", "NaN"),
        (b'{"a": -Infinity}', "invalid_json", "-Infinity"),
        (b'{"a": -1e400}', "invalid_json", "too large"),
        (b'"\xc3\x28"', "invalid_utf8", "offset 1"),
        (b'{"a": 1,}', "invalid_json", "line 1"),
        (b'{"a": ["x", "\\ud83d"]}', "invalid_utf8", "'a.[1]'"),
        (b'{"\\udc00": 1}', "invalid_utf8", "surrogate"),
    ],
)
def test_faults_are_named(body: bytes, code: str, says: str) -> None:
    with pytest.raises(InvalidRequest, match=says.replace("[", r"\[").replace(".", r"\.")) as caught:
        parse_json(body, 9)
    assert caught.value.code == code


def test_a_whole_surrogate_pair_is_one_character() -> None:
    assert parse_json(b'"\\ud83d\\ude00"', 1) == "\U0001f600"
