"""Log files: bounded, read from the end, followed across rotations."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from omnistage.launcher.logs import Follower, RotatingLog, follow, log_files, mark_run, run_start, tail


def everything(path: Path) -> bytes:
    older = sorted(path.parent.glob(f"{path.name}.*"), reverse=True)
    return b"".join(file.read_bytes() for file in [*older, path])


def test_files_stay_within_their_bound_and_keep_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    log = RotatingLog(path, max_bytes=100, kept=2)
    for number in range(100):
        log.write(f"line {number:03}\n".encode())
    log.close()
    sizes = {file.name: file.stat().st_size for file in tmp_path.iterdir()}
    assert set(sizes) == {"a.log", "a.log.1", "a.log.2"}
    assert max(sizes.values()) <= 100
    lines = everything(path).decode().splitlines()
    assert lines == [f"line {number:03}" for number in range(100 - len(lines), 100)]


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000])
def test_lines_are_not_torn_by_rotation(tmp_path: Path, chunk: int) -> None:
    path = tmp_path / "a.log"
    text = b"".join(f"line {number:03}\n".encode() for number in range(60))
    log = RotatingLog(path, max_bytes=200, kept=9)
    for start in range(0, len(text), chunk):
        log.write(text[start : start + chunk])
    log.close()
    assert everything(path) == text


def test_a_line_longer_than_a_file_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    log = RotatingLog(path, max_bytes=10, kept=5)
    log.write(b"x" * 25 + b"\n")
    log.close()
    assert everything(path) == b"x" * 25 + b"\n"
    assert all(file.stat().st_size <= 10 for file in tmp_path.iterdir())


def test_a_restart_appends(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    for word in (b"one\n", b"two\n"):
        log = RotatingLog(path)
        log.write(word)
        log.close()
    assert path.read_bytes() == b"one\ntwo\n"


def test_tail(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("".join(f"{number} {'x' * 100}\n" for number in range(5000)))
    assert [line.split()[0] for line in tail(path, 3)] == ["4997", "4998", "4999"]
    assert len(tail(path, 4000)) == 4000
    assert len(tail(path, 9999)) == 5000
    assert tail(path, 0) == []
    assert tail(path, 9999, path.stat().st_size - 212) == tail(path, 2)
    assert tail(path, 1, path.stat().st_size - 212) == tail(path, 1)
    assert tail(path, 2, path.stat().st_size) == []
    assert tail(path, 2, path.stat().st_size + 1) == tail(path, 2)
    assert tail(tmp_path / "none.log", 3) == []


def test_follow_sees_only_what_is_new_and_misses_nothing_at_a_rotation(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    log = RotatingLog(path, max_bytes=30, kept=2)
    log.write(b"old\n")
    follower = Follower(path)
    assert follower.poll() == []
    log.write(b"half")
    assert follower.poll() == []
    log.write(b" whole\nnext\n")
    log.write(b"after the rotation\n")
    assert follower.poll() == ["half whole", "next", "after the rotation"]
    assert follower.poll() == []
    log.close()


def test_which_logs(tmp_path: Path) -> None:
    for name in ("talker-1", "talker-2", "codec-1", "nats"):
        (tmp_path / f"{name}.log").touch()
    (tmp_path / "codec-1.log.1").touch()
    assert list(log_files(tmp_path, None)) == ["codec-1", "nats", "talker-1", "talker-2"]
    assert list(log_files(tmp_path, "talker")) == ["talker-1", "talker-2"]
    assert list(log_files(tmp_path, "talker-2")) == ["talker-2"]
    assert list(log_files(tmp_path, "nats")) == ["nats"]
    assert log_files(tmp_path, "dit") == {}


def test_a_log_that_was_rotated_in_this_run_is_all_of_this_run(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    path.write_text("old old old\n")
    assert run_start(path) == 0
    mark_run(tmp_path)
    assert run_start(path) == 12
    log = RotatingLog(path, max_bytes=20)
    log.write(b"one\n" + b"next file\n")
    log.close()
    assert path.read_bytes() == b"next file\n"
    assert run_start(path) == 0
    assert list(log_files(tmp_path, None, this_run=True)) == ["a"]


def test_following_includes_processes_that_come_later(tmp_path: Path) -> None:
    (tmp_path / "talker-1.log").write_text("old\n")
    lines = follow(tmp_path, "talker", every_s=0.01)

    def write() -> None:
        time.sleep(0.1)
        (tmp_path / "talker-2.log").write_text("first\nsecond\n")
        (tmp_path / "codec-1.log").write_text("another service\n")
        with (tmp_path / "talker-1.log").open("a") as file:
            file.write("new\n")

    writer = threading.Thread(target=write)
    writer.start()
    seen = {next(lines) for _ in range(3)}
    writer.join()
    assert seen == {("talker-1", "new"), ("talker-2", "first"), ("talker-2", "second")}
