"""Log files of the processes: written with a bound on their size, read by tail and follow."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

MAX_BYTES = 5 * 1024 * 1024
KEPT = 2
"""Older files kept beside the current one: NAME.log.1 is the youngest of them."""

_TAIL_BLOCK_BYTES = 64 * 1024

_RUN = "run.json"
"""Beside the logs: where each of them ended when the last run of the system began."""


class RotatingLog:
    """Appends bytes to a file; the file and its `kept` predecessors never exceed `max_bytes` each.

    Rotation happens between lines where a line fits at all.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES, kept: int = KEPT) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._kept = kept
        self._file: BinaryIO = path.open("ab")
        self._size = path.stat().st_size

    def write(self, data: bytes) -> None:
        while data:
            room = self._max_bytes - self._size
            if len(data) <= room:
                self._append(data)
                return
            cut = data.rfind(b"\n", 0, max(room, 0)) + 1
            if not cut and self._size == 0:
                cut = self._max_bytes
            self._append(data[:cut])
            data = data[cut:]
            self._rotate()

    def close(self) -> None:
        self._file.close()

    def _append(self, data: bytes) -> None:
        self._file.write(data)
        self._file.flush()
        self._size += len(data)

    def _rotate(self) -> None:
        self._file.close()
        for number in range(self._kept, 0, -1):
            older = self._path if number == 1 else self._numbered(number - 1)
            if older.exists():
                older.replace(self._numbered(number))
        self._file = self._path.open("wb")
        self._size = 0

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def mark_run(folder: Path) -> None:
    """A run of the system begins: remember where the logs end now."""
    ends = {path.name: _end(path) for path in folder.glob("*.log")}
    (folder / _RUN).write_text(json.dumps(ends), encoding="utf-8")


def run_start(path: Path) -> int:
    """Where in a log the last run of the system begins; beyond its end, or at it, if that run wrote nothing there."""
    try:
        inode, size = json.loads((path.parent / _RUN).read_text(encoding="utf-8"))[path.name]
    except (FileNotFoundError, KeyError, ValueError):
        return 0
    return int(size) if path.stat().st_ino == inode else 0


def _end(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_ino, status.st_size


def tail(path: Path, lines: int, begin: int = 0) -> list[str]:
    """The last lines of a file; empty if there is none.

    Args:
        begin: nothing before this byte is shown; ignored if the file has become shorter than that.
    """
    if lines <= 0 or not path.exists():
        return []
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        begin = begin if begin <= end else 0
        data = b""
        while end > begin and data.count(b"\n") <= lines:
            start = max(begin, end - _TAIL_BLOCK_BYTES)
            file.seek(start)
            data = file.read(end - start) + data
            end = start
    return data.decode(errors="replace").splitlines()[-lines:]


class Follower:
    """New complete lines of one file, across rotations."""

    def __init__(self, path: Path, *, from_start: bool = False) -> None:
        self._path = path
        self._inode = 0
        self._offset = 0
        self._rest = b""
        if not from_start and path.exists():
            status = path.stat()
            self._inode, self._offset = status.st_ino, status.st_size

    def poll(self) -> list[str]:
        data = self._read()
        if not data:
            return []
        *complete, self._rest = (self._rest + data).split(b"\n")
        return [line.decode(errors="replace") for line in complete]

    def _read(self) -> bytes:
        try:
            inode = self._path.stat().st_ino
        except FileNotFoundError:
            return b""
        if inode == self._inode:
            return self._from(self._path, self._offset)
        before = self._path.with_name(f"{self._path.name}.1")
        missed = self._from(before, self._offset) if before.exists() and before.stat().st_ino == self._inode else b""
        self._inode, self._offset = inode, 0
        return missed + self._from(self._path, 0)

    def _from(self, path: Path, offset: int) -> bytes:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
        self._offset = offset + len(data)
        return data


def log_files(folder: Path, which: str | None, *, this_run: bool = False) -> dict[str, Path]:
    """Process name -> its log, for one service ("talker"), one process ("talker-1") or all.

    Args:
        this_run: only those that the last run of the system wrote to.
    """
    files = {path.stem: path for path in sorted(folder.glob("*.log"))}
    if this_run:
        files = {name: path for name, path in files.items() if path.stat().st_size > run_start(path)}
    if which is None:
        return files
    return {name: path for name, path in files.items() if name == which or name.rpartition("-")[0] == which}


def follow(folder: Path, which: str | None, *, every_s: float = 0.25) -> Iterator[tuple[str, str]]:
    """(process, line) as they are written, new processes included; never ends by itself."""
    followers = {name: Follower(path) for name, path in log_files(folder, which).items()}
    while True:
        for name, path in log_files(folder, which).items():
            if name not in followers:
                followers[name] = Follower(path, from_start=True)
            for line in followers[name].poll():
                yield name, line
        time.sleep(every_s)
