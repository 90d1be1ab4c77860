"""The state file: how `down`, `status`, `scale`, `logs` and `say` find the running system.

It holds the broker's password, so only its owner may read it.
"""

from __future__ import annotations

import os

import msgspec

from omnistage.launcher.faults import NotRunning
from omnistage.launcher.folder import DataFolder
from omnistage.launcher.hints import hint


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A running system.

    Attributes:
        pid: of the launcher.
        started: unix time in seconds.
        address: base of the HTTP API, e.g. "http://127.0.0.1:8000".
        control: path of the launcher's control socket.
        bus_url, bus_user, bus_password: the broker.
        redis_url: the tensor server.
        tensors_url: the tensor server as other hosts reach it; empty if none does.
        models: the models file and its overlays.
    """

    pid: int
    started: float
    version: str
    address: str
    control: str
    namespace: str
    bus_url: str
    bus_user: str
    bus_password: str
    redis_url: str
    arena: str
    models: tuple[str, ...]
    tensors_url: str = ""


def write_state(folder: DataFolder, state: State) -> None:
    """Replace the state file in one step; mode 0600 from the first byte on."""
    fresh = folder.state.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    file = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(file, "wb") as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(state)))
    fresh.rename(folder.state)


def read_state(folder: DataFolder) -> State:
    """The system that runs from a data folder.

    Raises:
        NotRunning: none does; says so too when a launcher was killed and left its state, or is still starting.
    """
    if not folder.held():
        if folder.state.exists():
            clean = hint("down", folder.root)
            raise NotRunning(
                f"nothing runs from {folder.root}: its launcher was killed; `{clean}` removes what it left"
            )
        raise NotRunning(f"nothing runs from {folder.root}; name the data folder of another system with --data")
    try:
        return msgspec.json.decode(folder.state.read_bytes(), type=State)
    except FileNotFoundError as error:
        raise NotRunning(f"the system in {folder.root} is just starting or stopping; try again") from error
    except msgspec.MsgspecError as error:
        raise NotRunning(f"{folder.state} is not a state file of this version: {error}") from error
