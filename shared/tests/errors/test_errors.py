"""The tree of errors is the one that its docstring draws, and every error can be told from the others."""

from __future__ import annotations

import re

import pytest

from omnistage import errors


def kinds(root: type[errors.OmnistageError] = errors.OmnistageError) -> list[type[errors.OmnistageError]]:
    return [
        root,
        *(leaf for branch in root.__subclasses__() if branch.__module__ == root.__module__ for leaf in kinds(branch)),
    ]


def test_the_drawn_tree_is_the_real_one() -> None:
    drawn: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^([\s│├└─]*)([A-Z][A-Za-z]+)", line)
        if match and hasattr(errors, match[2]):
            drawn.append((len(match[1]) // 4, match[2]))
    assert {name for _, name in drawn} == {kind.__name__ for kind in kinds()}
    above: dict[int, str] = {}
    for depth, name in drawn:
        above[depth] = name
        if depth > 1:
            assert getattr(errors, name).__base__.__name__ == above[depth - 1], name


def test_codes_are_unique_and_readable() -> None:
    codes = [kind.code for kind in kinds()]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_what_cannot_help_to_repeat_is_not_retryable(kind: type[errors.OmnistageError]) -> None:
    error = kind("why")
    assert str(error) == error.message == "why"
    assert 400 <= error.status <= 599
    if error.status < 429 or error.status == 499:
        assert not error.retryable
    if error.status in (429, 503):
        assert error.retryable


def test_fields_are_kept() -> None:
    error = errors.Unavailable("busy", code="line_full", param="model", stage="gateway", retry_after_s=1.5)
    assert (error.code, error.param, error.stage, error.retry_after_s) == ("line_full", "model", "gateway", 1.5)
    assert errors.Unavailable.code == "unavailable", "the class keeps its own"
