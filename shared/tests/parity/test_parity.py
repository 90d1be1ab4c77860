"""Comparing, finding fixtures, the table, and what a service's command answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from omnistage.parity import Comparison, compare, family_folders, run_checks, table_lines


def _family(folder: Path, model_type: str) -> Path:
    (folder / "fixtures").mkdir(parents=True)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text(json.dumps({"model_type": model_type}))
    return folder


@pytest.mark.parametrize(
    ("actual", "expected", "error"),
    [
        ([1.0, 2.5], [1.0, 2.0], 0.5),
        ([3, 4], [3, 4], 0.0),
        ([3, 4], [3, 5], 1.0),
        ([1.0], [1.0, 2.0], float("inf")),
        ([float("nan")], [1.0], float("inf")),
        ([float("inf")], [1.0], float("inf")),
        (np.zeros((0, 16)), np.zeros((0, 16)), 0.0),
    ],
)
def test_the_error_is_the_largest_difference(actual: object, expected: object, error: float) -> None:
    assert compare("x", actual, expected, 0.1).error == error  # type: ignore[arg-type]


def test_an_error_equal_to_the_allowed_one_passes() -> None:
    assert compare("x", [0.5], [0.0], 0.5).passed
    assert not compare("x", [0.51], [0.0], 0.5).passed
    assert compare("codes", [7], [7], 0.0).passed
    assert not compare("codes", [7], [8], 0.0).passed


def test_families_are_found_in_the_folder_itself_and_one_below(tmp_path: Path) -> None:
    first = _family(tmp_path / "a", "one")
    second = _family(tmp_path / "b", "two")
    (tmp_path / "c").mkdir()
    assert family_folders(tmp_path, "one") == [first]
    assert family_folders(second, "two") == [second]
    assert family_folders(second, "one") == []


def test_the_table_shows_every_row_and_counts() -> None:
    rows = [
        Comparison(part="codec: wave", shape=(2, 3), error=1.5e-6, allowed=1e-5),
        Comparison(part="codes", shape=(), error=2.0, allowed=0.0),
    ]
    assert table_lines(rows) == [
        "part         shape   largest error  allowed error",
        "codec: wave  2x3     1.5e-06        1e-05          ok",
        "codes        scalar  2              0              MISSED",
        "2 compared, 1 missed",
    ]


def _check(error: float) -> Iterator[Comparison]:
    yield Comparison(part="wave", shape=(1,), error=error, allowed=0.1)


def test_a_miss_exits_with_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _family(tmp_path / "a", "one")
    assert run_checks("codec", {"one": lambda _: _check(0.05)}, [str(tmp_path)]) == 0
    assert run_checks("codec", {"one": lambda _: _check(0.2)}, [str(tmp_path)]) == 1
    assert "1 compared, 1 missed" in capsys.readouterr().out


def test_rows_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _family(tmp_path / "a", "one")
    assert run_checks("codec", {"one": lambda _: _check(0.05)}, [str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"part": "wave", "shape": [1], "error": 0.05, "allowed": 0.1}


def test_nothing_to_compare_is_a_fault_only_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_checks("codec", {"one": lambda _: _check(0.0)}, [str(tmp_path), "--json"]) == 0
    assert run_checks("codec", {"one": lambda _: _check(0.0)}, [str(tmp_path)]) == 1
    assert run_checks("codec", {}, [str(tmp_path / "none"), "--json"]) == 1
    assert "is no folder" in capsys.readouterr().err
