"""Errors survive the wire; what is not ours travels without its text."""

from __future__ import annotations

import pytest

from omnistage import errors
from omnistage.contracts import Failure
from omnistage.runtime.failures import to_error, to_failure

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, errors.OmnistageError) and kind.__module__ == errors.__name__
]
"""The errors that cross processes; other modules' own never leave theirs."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_error_comes_back_as_itself(kind: type[errors.OmnistageError]) -> None:
    error = kind("what happened", param="input", stage="talker", retry_after_s=2.5)
    again = to_error(to_failure(error, "codec"))
    assert type(again) is kind
    assert (again.message, again.code, again.status) == ("what happened", kind.code, kind.status)
    assert (again.param, again.stage, again.retry_after_s) == ("input", "talker", 2.5)
    assert again.retryable == kind.retryable


def test_a_code_of_its_own_keeps_the_class_of_its_status() -> None:
    error = errors.InvalidRequest("too long", code="context_length_exceeded", param="messages")
    again = to_error(to_failure(error, "thinker"))
    assert type(again) is errors.InvalidRequest
    assert (again.code, again.param, again.stage) == ("context_length_exceeded", "messages", "thinker")


@pytest.mark.parametrize("status", [403, 422, 500, 502])
def test_an_unknown_status_is_kept(status: int) -> None:
    assert to_error(Failure(code="peculiar", message="m", status=status)).status == status


def test_a_foreign_error_shows_its_type_and_not_its_text() -> None:
    failure = to_failure(ValueError("the user's secret words"), "talker")
    assert failure.status == 500
    assert "secret" not in failure.message
    assert "ValueError" in failure.message
