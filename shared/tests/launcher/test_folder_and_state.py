"""The data folder's lock, its sweep, and the state file."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from omnistage.launcher.faults import AlreadyRunning, LauncherError, NotRunning
from omnistage.launcher.folder import MARK, DataFolder, kill_marked
from omnistage.launcher.state import State, read_state, write_state

STATE = State(
    pid=1,
    started=2.0,
    version="0.1.0",
    address="http://127.0.0.1:8000",
    control="/c.sock",
    namespace="omni",
    bus_url="nats://127.0.0.1:1",
    bus_user="u",
    bus_password="p",
    redis_url="unix:///t.sock",
    arena="/dev/shm/a",
    models=("a.yaml",),
)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[DataFolder]:
    folder = DataFolder(tmp_path / "data")
    folder.prepare()
    yield folder
    folder.sweep()


def test_only_one_holds_it(folder: DataFolder) -> None:
    assert not folder.held()
    with folder.hold():
        assert folder.held()
        with pytest.raises(AlreadyRunning, match="runs from"), folder.hold():
            pass
        for refused in (folder.refuse_second, folder.clear):
            with pytest.raises(AlreadyRunning, match=r"omnistage down --data .*` stops it"):
                refused()
        assert folder.held()
    assert not folder.held()
    with folder.hold():
        pass
    folder.refuse_second()


def test_what_a_killed_launcher_left_is_cleared_once(folder: DataFolder) -> None:
    assert not folder.clear()
    folder.arena.mkdir()
    (folder.run / "control.sock").touch()
    write_state(folder, STATE)
    assert folder.clear()
    assert not folder.arena.exists()
    assert [path.name for path in folder.run.iterdir()] == ["lock"]
    assert not folder.clear()
    assert not DataFolder(folder.root / "none").clear()


def test_holding_makes_private_folders_and_leaves_none(folder: DataFolder) -> None:
    with folder.hold():
        for path in (folder.arena, folder.sockets, folder.run):
            assert path.is_dir()
            assert path.stat().st_mode & 0o777 == 0o700
        (folder.run / "nats.conf").write_text("secret")
        (folder.arena / "partition").write_bytes(b"x")
    assert not folder.arena.exists()
    assert [path.name for path in folder.run.iterdir()] == ["lock"]
    assert folder.nats.is_dir()
    assert folder.logs.is_dir()


def test_what_a_crash_left_is_swept(folder: DataFolder) -> None:
    folder.arena.mkdir()
    (folder.arena / "old").write_bytes(b"x")
    (folder.run / "tensors.sock").touch()
    (folder.logs / "talker-1.log").write_text("kept")
    with folder.hold():
        assert list(folder.arena.iterdir()) == []
        assert not (folder.run / "tensors.sock").exists()
    assert (folder.logs / "talker-1.log").read_text() == "kept"


def test_sockets_lie_elsewhere_when_the_path_is_too_long(tmp_path: Path) -> None:
    deep = DataFolder(tmp_path / ("x" * 100))
    deep.prepare()
    assert deep.sockets != deep.run
    with deep.hold():
        assert deep.sockets.is_dir()
        assert len(os.fsencode(deep.sockets / "control.sock")) < 100
    assert not deep.sockets.exists()
    assert DataFolder(tmp_path / ("y" * 100)).sockets != deep.sockets


def test_an_unusable_folder_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LauncherError, match="cannot be used: Not a directory"):
        DataFolder(tmp_path / "file" / "data").prepare()
    with pytest.raises(NotRunning, match="nothing runs from"):
        read_state(DataFolder(tmp_path / "file"))


def test_processes_of_a_folder_are_killed_and_no_others(tmp_path: Path) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(100)"]
    mine = subprocess.Popen(sleep, env=dict(os.environ) | {MARK: str(tmp_path)})
    other = subprocess.Popen(sleep, env=dict(os.environ) | {MARK: str(tmp_path / "other")})
    try:
        while kill_marked(tmp_path) == 0:  # the mark shows once the process has its program
            pass
        assert not psutil.pid_exists(mine.pid)
        assert other.poll() is None
    finally:
        mine.kill()
        other.kill()
        mine.wait()
        other.wait()


def test_state_is_private_and_read_back(folder: DataFolder) -> None:
    with folder.hold():
        write_state(folder, STATE)
        assert folder.state.stat().st_mode & 0o777 == 0o600
        assert read_state(folder) == STATE
        write_state(folder, STATE)
        assert read_state(folder) == STATE


def test_no_state_no_system(folder: DataFolder, tmp_path: Path) -> None:
    with pytest.raises(NotRunning, match=r"^nothing runs from \S+; name the data folder of another .* --data$"):
        read_state(DataFolder(tmp_path / "nowhere"))
    write_state(folder, STATE)
    with pytest.raises(NotRunning, match="was killed"):
        read_state(folder)


def test_a_start_that_is_under_way_and_a_foreign_file_are_said(folder: DataFolder) -> None:
    with folder.hold():
        with pytest.raises(NotRunning, match="just starting"):
            read_state(folder)
        folder.state.write_text('{"pid": "x"}')
        with pytest.raises(NotRunning, match="not a state file of this version"):
            read_state(folder)
