"""The broker takes few threads on a small machine, unless the user says otherwise."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from omnistage.launcher.folder import DataFolder
from omnistage.launcher.servers import Broker


def environment(folder: Path) -> dict[str, str]:
    data = DataFolder(folder / "data")
    data.run.mkdir(parents=True)
    return dict(Broker(data).spec().environment)


@pytest.mark.parametrize(("cores", "threads"), [(1, "1"), (2, "1"), (16, "8"), (None, "1")])
def test_half_of_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int | None, threads: str) -> None:
    monkeypatch.delenv("GOMAXPROCS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert environment(tmp_path)["GOMAXPROCS"] == threads


def test_what_the_user_says_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOMAXPROCS", "3")
    monkeypatch.setenv("GOGC", "50")
    given = environment(tmp_path)
    assert (given["GOMAXPROCS"], given["GOGC"]) == ("3", "50")
