"""Where the broker and the tensor server listen, for systems that extend over several hosts."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from urllib.parse import quote

from omnistage.launcher.faults import LauncherError
from omnistage.launcher.state import State

BUS_PORT, TENSOR_PORT = 4222, 6379


@dataclass(frozen=True)
class Internal:
    """Addresses for services on other hosts.

    Attributes:
        host: an IP address of this machine that the other hosts reach; empty for a system on this machine alone.
        bus_port, tensor_port: 0 takes a free one.
    """

    host: str = ""
    bus_port: int = BUS_PORT
    tensor_port: int = TENSOR_PORT


THIS_MACHINE = Internal()
"""No other host takes part."""


def internal_address(host: str) -> str:
    """The IP address of a host name or address of this machine.

    Raises:
        LauncherError: it is none of this machine's, or stands for all of them.
    """
    try:
        address = str(socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][4][0])
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.bind((address, 0))
    except OSError as error:
        raise LauncherError(f"{host!r} is no address of this machine: {error.strerror}") from error
    if address in ("0.0.0.0", "::"):
        raise LauncherError(f"{host} says nothing to other hosts: name the address by which they reach this machine")
    return address


def bracketed(address: str) -> str:
    """An address as it stands before a port."""
    return f"[{address}]" if ":" in address else address


def redis_url(address: str, port: int, password: str) -> str:
    """How services on other hosts reach the tensor server."""
    return f"redis://:{quote(password, safe='')}@{bracketed(address)}:{port}/0"


def environment_lines(state: State) -> list[str]:
    """What services on other hosts must be told, as lines of an environment file.

    Raises:
        LauncherError: no other host reaches this system.
    """
    if not state.tensors_url:
        raise LauncherError("this system is for one machine; --internal-host of `omnistage up` lets other hosts in")
    values = {
        "NAMESPACE": state.namespace,
        "BUS_URL": state.bus_url,
        "BUS_USER": state.bus_user,
        "BUS_PASSWORD": state.bus_password,
        "REDIS_URL": state.tensors_url,
    }
    files = [f"# Copy to the other host and name there in OMNISTAGE_MODELS: {path}" for path in state.models]
    return [*files, *(f"OMNISTAGE_{name}={value}" for name, value in values.items())]
