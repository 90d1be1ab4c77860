"""Who owns the partition files of an arena: made, adopted and swept under a file lock.

The kernel drops the lock when its holder dies, however it dies. Whoever gets the lock of a partition is its owner.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from omnistage.errors import ConfigError, TensorGone
from omnistage.tensors.arena import (
    PartitionMap,
    allocate_file,
    file_bytes,
    partition_files,
    remove_file,
)
from omnistage.tensors.partition import OwnedPartition
from omnistage.tensors.slabs import UNIT_BYTES

_ATTEMPTS = 16


def default_folder(namespace: str) -> Path:
    """The arena folder of a namespace: on tmpfs where there is one, else among the temporary files."""
    shared = Path("/dev/shm") if sys.platform == "linux" else Path(tempfile.gettempdir())
    return shared / f"omnistage-{os.getuid()}-{namespace}"


def open_partition(folder: Path, *, namespace: str, instance: str, capacity_bytes: int) -> OwnedPartition:
    """Own a partition: one of a dead owner if it has the same size, with what it still holds, else a new one.

    Raises:
        ConfigError: the folder cannot be used, or its filesystem has no room.
    """
    units = max(1, -(-capacity_bytes // UNIT_BYTES))
    try:
        sweep_folder(folder)
        adopted = _adopt(folder, units)
    except OSError as error:
        raise ConfigError(f"no arena in {folder}: {error.strerror or error}") from error
    return adopted if adopted is not None else create_partition(folder, namespace, instance, units)


def create_partition(folder: Path, namespace: str, instance: str, units: int) -> OwnedPartition:
    """Make a partition of so many units, with all of its pages in memory.

    Raises:
        ConfigError: the folder cannot be used, or its filesystem has no room.
    """
    prefix = f"{_token(namespace)}.{_token(instance)}"
    for _ in range(_ATTEMPTS):
        path = folder / f"{prefix}.{secrets.token_hex(8)}.arena"
        try:
            descriptor = _create_locked(folder, path)
            if descriptor is not None:
                return _fill(path, descriptor, units)
        except OSError as error:
            raise ConfigError(f"no arena in {folder}: {error.strerror or error}") from error
    raise ConfigError(f"no arena in {folder}: other processes keep removing its files")


def sweep_folder(folder: Path, *, remove: bool = False) -> int:
    """Reclaim the partitions of dead owners; those with blocks that are still held stay readable.

    Args:
        folder: the arena.
        remove: remove the folder too if nothing is left in it (for the end of the whole system).

    Returns:
        How many blocks were reclaimed.
    """
    reclaimed = 0
    for path in partition_files(folder):
        with owning(path) as descriptor:
            if descriptor is not None:
                reclaimed += _sweep_dead(path, descriptor)
    if remove:
        with suppress(OSError):
            folder.rmdir()
    return reclaimed


def forget_dead(folder: Path, request: int) -> int:
    """Release the blocks of a request (`arena.request_hash`) in the partitions of dead owners; returns how many."""
    forgotten = 0
    for path in partition_files(folder):
        with owning(path) as descriptor, suppress(TensorGone):
            if descriptor is not None:
                view = PartitionMap.of_descriptor(path, descriptor)
                blocks = [block for block in view.held() if block.request == request]
                forgotten += sum(view.release(block.span.unit, block.generation) for block in blocks)
    return forgotten


@contextmanager
def owning(path: Path) -> Iterator[int | None]:
    """The locked descriptor of a partition without an owner, for a while; None if it has one or is gone."""
    descriptor = _try_lock(path)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def _try_lock(path: Path) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return None  # gone, or no file that this user may own
    if _lock(descriptor):
        return descriptor
    os.close(descriptor)
    return None


def _lock(descriptor: int) -> bool:
    """Take the lock at once or not at all, and only of a file that still has its name."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return os.fstat(descriptor).st_nlink > 0


def _sweep_dead(path: Path, descriptor: int) -> int:
    try:
        view = PartitionMap.of_descriptor(path, descriptor)
    except TensorGone:
        remove_file(path)
        return 0
    held = view.held()
    over = [block for block in view.published() if block not in held]
    for block in over:
        view.begin(block.span)
    if not held:
        remove_file(path)
    return len(over)


def _adopt(folder: Path, units: int) -> OwnedPartition | None:
    for path in partition_files(folder):
        descriptor = _try_lock(path)
        if descriptor is None:
            continue
        try:
            view = PartitionMap.of_descriptor(path, descriptor)
            if view.units == units:
                partition = OwnedPartition(view, descriptor)
                view.prefault(fresh=False)
                return partition
        except (TensorGone, ValueError):
            pass  # not ours to judge: it goes when its last lease is over
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)
    return None


def _create_locked(folder: Path, path: Path) -> int | None:
    """A new locked file; None when a sweep came between its creation and its lock."""
    _check_folder(folder)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileNotFoundError:
        return None
    if _lock(descriptor):
        return descriptor
    os.close(descriptor)
    remove_file(path)
    return None


def _check_folder(folder: Path) -> None:
    """Make the folder; refuse one that another user could have prepared."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.stat(follow_symlinks=False)
    if status.st_uid not in (0, os.geteuid()):
        raise PermissionError(errno.EPERM, "the folder belongs to another user")


def _fill(path: Path, descriptor: int, units: int) -> OwnedPartition:
    size = file_bytes(units)
    room = os.statvfs(path.parent)
    free = room.f_bavail * room.f_frsize
    try:
        if free < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        allocate_file(descriptor, size)
        view = PartitionMap(path, descriptor, units=units)
        view.prefault(fresh=True)
        view.finish()
        return OwnedPartition(view, descriptor)
    except BaseException as error:
        remove_file(path)
        os.close(descriptor)
        if isinstance(error, OSError):
            raise ConfigError(
                f"no room for an arena partition of {size} bytes in {path.parent}: {error.strerror}; {free} bytes are "
                "free there. Make the filesystem larger (containers: shm_size or the size of the volume) or the "
                "partition smaller"
            ) from error
        raise


def _token(text: str) -> str:
    """A name as it may stand in a file name."""
    return re.sub(r"[^a-z0-9_-]", "-", text.lower()) or "-"
