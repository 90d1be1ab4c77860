"""Facts of a request in headers."""

from __future__ import annotations

import time

import pytest

from omnistage.contracts import FIRST_VERSION
from omnistage.runtime.meta import Meta, seconds_since_sent, sent_now


def test_headers_carry_everything() -> None:
    trace = {"traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
    meta = Meta(deadline=1234.5, tenant="acme", priority="batch", contract=3, trace=trace)
    assert Meta.from_headers(meta.to_headers()) == meta


@pytest.mark.parametrize(
    ("streamed", "priority", "reading"),
    [
        (True, "interactive", "stream"),
        (False, "interactive", "whole"),
        (True, "batch", "batch"),
        (False, "batch", "batch"),
    ],
)
def test_how_a_client_takes_its_answer_travels(streamed: bool, priority: str, reading: str) -> None:
    meta = Meta(deadline=1.0, priority=priority, streamed=streamed)
    assert Meta.from_headers(meta.to_headers()).reading == reading


def test_an_older_gateway_says_nothing_about_streams() -> None:
    assert Meta.from_headers({"omni-deadline": "1"}).streamed
    assert "omni-streamed" not in Meta(deadline=1.0).to_headers()


def test_what_is_left_out_has_a_default() -> None:
    meta = Meta.from_headers({}, default_deadline_s=10)
    assert 9 < meta.remaining_s <= 10
    assert (meta.tenant, meta.priority, meta.contract) == ("anonymous", "interactive", FIRST_VERSION)


@pytest.mark.parametrize("headers", [{"omni-deadline": "soon"}, {"omni-contract": "one"}])
def test_a_malformed_number_is_an_error(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"could not convert|invalid literal"):
        Meta.from_headers(headers)


def test_time_since_sent() -> None:
    assert seconds_since_sent({"omni-sent": str(time.time() - 2)}) == pytest.approx(2, abs=0.5)
    assert seconds_since_sent({"omni-sent": str(time.time() + 60)}) == 0
    assert seconds_since_sent({}) is None
    assert seconds_since_sent({"omni-sent": "x"}) is None
    assert set(sent_now()) == {"omni-sent"}
