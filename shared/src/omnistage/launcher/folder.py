"""The data folder: what lies where, who holds it, and how what a crash left behind is removed.

    nats/   the broker's streams, buckets and objects; the only part worth a backup
    logs/   one file per process, bounded
    run/    state, sockets and the broker's configuration of the running system; empty when none runs

A launcher holds an exclusive lock on run/lock for its whole life. The kernel drops the lock with the process, so a
state file without a lock is known to be stale, whatever its pid has become.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from omnistage.launcher.faults import AlreadyRunning, LauncherError
from omnistage.launcher.hints import hint

MARK = "_OMNISTAGE_DATA"
"""Environment variable that every process of a system carries: the data folder it belongs to."""

_SOCKET_PATH_BYTES = 100
"""Unix socket paths may have 107 bytes on Linux and 103 on macOS; the longest name here needs a few of them."""

_LOCK_WAIT_S = 1.0


@dataclass(frozen=True)
class DataFolder:
    """Paths below one data folder; `root` is absolute."""

    root: Path

    @property
    def nats(self) -> Path:
        return self.root / "nats"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def state(self) -> Path:
        return self.run / "state.json"

    @property
    def digest(self) -> str:
        """Short name of this folder for things that must lie elsewhere."""
        return hashlib.sha256(str(self.root).encode()).hexdigest()[:12]

    @property
    def sockets(self) -> Path:
        """Folder of the sockets: run/, or a private temporary folder where that path is too long for a socket."""
        if len(os.fsencode(self.run / "control.sock")) <= _SOCKET_PATH_BYTES:
            return self.run
        return Path(tempfile.gettempdir()) / f"omnistage-{os.getuid()}-{self.digest}"

    @property
    def arena(self) -> Path:
        """Folder of the shared-memory partitions: on tmpfs where there is one."""
        memory = Path("/dev/shm")
        base = memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
        return base / f"omnistage-{os.getuid()}-{self.digest}-arena"

    def prepare(self) -> None:
        """Create the folders. Raises LauncherError when that cannot be done."""
        try:
            for folder in (self.nats, self.logs, self.run):
                folder.mkdir(parents=True, exist_ok=True)
            self.run.chmod(0o700)
        except OSError as error:
            raise LauncherError(f"the data folder {self.root} cannot be used: {error.strerror}") from error

    def held(self) -> bool:
        """Whether a launcher runs from this folder."""
        try:
            lock = os.open(self.run / "lock", os.O_RDWR)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise LauncherError(f"the data folder {self.root} cannot be used: {error.strerror}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(lock)
        return False

    def refuse_second(self) -> None:
        """Raises AlreadyRunning if a launcher runs from this folder."""
        if self.held():
            raise self._held_already()

    def clear(self) -> bool:
        """Remove what a killed launcher left; whether there was anything.

        Raises:
            AlreadyRunning: a launcher runs from this folder.
        """
        if not self.run.is_dir():
            return False
        lock = os.open(self.run / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._lock(lock)
            return self.sweep()
        finally:
            os.close(lock)

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the folder; a crashed predecessor's processes, sockets and shared memory are removed first.

        Raises:
            AlreadyRunning: another launcher holds it.
        """
        lock = os.open(self.run / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            self._lock(lock)
            self.sweep()
            self._make_private(self.sockets)
            self._make_private(self.arena)
            try:
                yield
            finally:
                self.sweep()
        finally:
            os.close(lock)

    def sweep(self) -> bool:
        """Remove every trace of a system that no longer runs, but its data and logs. Only for the lock's holder.

        Returns:
            Whether there was any.
        """
        killed = kill_marked(self.root)
        elsewhere = [folder for folder in {self.arena, self.sockets} - {self.run} if folder.exists()]
        for folder in elsewhere:
            shutil.rmtree(folder, ignore_errors=True)
        files = [path for path in self.run.iterdir() if path.name != "lock"]
        for path in files:
            path.unlink(missing_ok=True)
        return bool(killed or elsewhere or files)

    def _lock(self, lock: int) -> None:
        """A probe (`held`) may hold the lock for an instant: try for a moment before giving up."""
        end = time.monotonic() + _LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() > end:
                    raise self._held_already() from error
                time.sleep(0.02)
            else:
                return

    def _held_already(self) -> AlreadyRunning:
        see, end = hint("status", self.root), hint("down", self.root)
        return AlreadyRunning(f"a system runs from {self.root} already (`{see}` shows it, `{end}` stops it)")

    def _make_private(self, folder: Path) -> None:
        """Create a folder of ours at a foreseeable place; one that somebody else owns is refused."""
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.is_symlink() or folder.stat().st_uid != os.getuid():
            raise LauncherError(f"{folder} belongs to somebody else; remove it")
        folder.chmod(0o700)


def kill_marked(root: Path, *, wait_s: float = 2.0) -> int:
    """Kill every process of this user that was started from a data folder; returns how many there were."""
    mine = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == str(root):
                process.kill()
                mine.append(process)
        except (psutil.AccessDenied, psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
    psutil.wait_procs(mine, timeout=wait_s)
    return len(mine)
