"""`omnistage restart --python` moves services to another environment, instance by instance."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from omnistage.launcher.cli import interpreter
from omnistage.launcher.faults import LauncherError


def versions(launched: Any, service: str) -> list[str | None]:
    return [process["version"] for process in launched.of_service(service)]


def environment(folder: Path, version: str) -> Path:
    """An interpreter whose services say that they are of this version."""
    python = folder / f"python-{version}"
    python.write_text(f'#!/bin/sh\nFAKE_VERSION={version} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return python


def test_a_service_moves_and_stays_where_it_was_moved_to(launched: Any, tmp_path: Path) -> None:
    launched.start("--scale", "talker=2")
    launched.until_ready()
    done = launched.run("restart", "talker", "--python", str(environment(tmp_path, "10.0")))
    assert done.returncode == 0, done.stderr
    assert (versions(launched, "talker"), versions(launched, "codec")) == (["10.0", "10.0"], ["9.9"])

    launched.run("scale", "talker=3")
    assert versions(launched, "talker") == ["10.0"] * 3, "more of it are of the same version"

    killed = launched.of_service("talker")[0]["pid"]
    os.kill(killed, signal.SIGKILL)
    launched.wait_for(lambda: versions(launched, "talker") == ["10.0"] * 3 and killed not in pids(launched))

    assert launched.run("restart", "talker", "codec").returncode == 0
    assert (versions(launched, "talker"), versions(launched, "codec")) == (["10.0"] * 3, ["9.9"])
    assert launched.run("restart", "talker", "--python", sys.executable).returncode == 0
    assert versions(launched, "talker") == ["9.9"] * 3, "and back"


def pids(launched: Any) -> list[int]:
    return [process["pid"] for process in launched.of_service("talker")]


def test_an_environment_that_does_not_work_changes_nothing(launched: Any, tmp_path: Path) -> None:
    launched.start()
    launched.until_ready()
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho No module named omnistage_talker >&2\nexit 1\n")
    broken.chmod(0o755)
    before = pids(launched)
    failed = launched.run("restart", "talker", "--python", str(broken))
    assert failed.returncode == 1
    assert "No module named omnistage_talker" in failed.stderr
    assert (pids(launched), versions(launched, "talker")) == (before, ["9.9"])
    launched.run("scale", "talker=2")
    assert versions(launched, "talker") == ["9.9", "9.9"], "nothing is started there any more"


def test_an_interpreter_is_taken_as_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    monkeypatch.chdir(tmp_path)
    assert interpreter(Path("python")) == str(link)
    for wrong in (tmp_path, tmp_path / "missing"):
        with pytest.raises(LauncherError, match="is no Python interpreter"):
            interpreter(wrong)
    (tmp_path / "file").touch(0o644)
    with pytest.raises(LauncherError, match="is no Python interpreter"):
        interpreter(Path("file"))
