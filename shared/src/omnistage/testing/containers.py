"""Servers in containers, for tests that also run against public images where a Docker engine answers."""

from __future__ import annotations

import contextlib
import gc
import socket
import time
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

NATS_IMAGE = "nats:2.12-alpine"
VALKEY_IMAGE = "valkey/valkey:8-alpine"

_PROBE_S, _START_S, _POLL_S = 2, 30.0, 0.02


@cache
def docker_answers() -> bool:
    """Whether a Docker engine answers here; asked once a process."""
    import docker
    from docker.errors import DockerException

    with warnings.catch_warnings():
        # The library leaves the socket of a connection that failed to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        client = None
        with contextlib.suppress(DockerException):
            client = docker.from_env(timeout=_PROBE_S)
        gc.collect()
    if client is not None:
        client.close()
    return client is not None


@contextlib.contextmanager
def nats_container() -> Iterator[str]:
    """Address of a broker with JetStream in a container; removed at the end."""
    with _container(NATS_IMAGE, 4222, ["-js", "-sd", "/data"], tmpfs="/data") as address:
        _await_answer(address, b"INFO ")
        yield f"nats://{address[0]}:{address[1]}"


@contextlib.contextmanager
def valkey_container(settings: dict[str, str] | None = None) -> Iterator[str]:
    """Address of a Redis-protocol server without persistence in a container; removed at the end.

    Args:
        settings: further lines of its configuration, e.g. {"maxmemory": "64mb"}.
    """
    merged = {"save": "", "appendonly": "no", "protected-mode": "no"} | (settings or {})
    command = [word for key, value in merged.items() for word in (f"--{key}", value)]
    # Named in full: the public image's entry point is a script that takes a command, not options alone.
    with _container(VALKEY_IMAGE, 6379, command, entrypoint=["valkey-server"]) as address:
        _await_answer(address, b"+PONG", ask=b"PING\r\n")
        yield f"redis://{address[0]}:{address[1]}"


@contextlib.contextmanager
def _container(image: str, port: int, command: list[str], tmpfs: str = "", **options: Any) -> Iterator[tuple[str, int]]:
    """Host and port at which the container's port is reached."""
    from testcontainers.core.config import testcontainers_config
    from testcontainers.core.container import DockerContainer

    # The reaper would be one more image; whoever starts a container here also removes it.
    testcontainers_config.ryuk_disabled = True
    container = DockerContainer(image).with_exposed_ports(port).with_kwargs(**options)
    container.with_command(command)
    if tmpfs:
        container.with_tmpfs_mount(tmpfs)
    with container:
        yield container.get_container_host_ip(), int(container.get_exposed_port(port))


def _await_answer(address: tuple[str, int], expected: bytes, ask: bytes = b"") -> None:
    """Wait until the server itself answers: Docker's proxy accepts connections before it does.

    Raises:
        RuntimeError: it did not in time.
    """
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.create_connection(address, timeout=1) as connection:
            connection.sendall(ask)
            if connection.recv(64).startswith(expected):
                return
        time.sleep(_POLL_S)
    raise RuntimeError(f"no server answers at {address[0]}:{address[1]}")
