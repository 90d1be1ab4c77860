"""Ctrl-C while libraries are still being imported."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("command", "library"), [(["omnistage.launcher", "--version"], "typer"), (["omnistage.launcher.demo"], "openai")]
)
def test_an_interrupt_during_imports_leaves_no_traceback(tmp_path: Path, command: list[str], library: str) -> None:
    (tmp_path / f"{library}.py").write_text("import signal; signal.raise_signal(signal.SIGINT)\n")
    told = subprocess.run(
        [sys.executable, "-m", *command],
        env=dict(os.environ) | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (told.returncode, told.stdout, told.stderr) == (130, "", "")


def test_the_command_starts_there() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"omnistage": "omnistage.launcher.__main__:main"}
