"""The address of the HTTP API: taken before anything starts, kept until everything has stopped.

The launcher itself listens, and every gateway inherits the socket. So a port cannot be lost to another program between
a check and a start, several gateways share one address, and while the only gateway is restarted clients wait in the
kernel's queue instead of being refused.
"""

from __future__ import annotations

import errno
import socket

from omnistage.launcher.faults import LauncherError, PortInUse

_BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """A listening, inheritable socket; port 0 takes a free one.

    Raises:
        PortInUse: another program listens there.
        LauncherError: the host is none of this machine's, or the port may not be used.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise LauncherError(f"{host!r} is no address of this machine: {error.strerror}") from error
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUse(
                f"port {port} is used by another program; choose one with --port or OMNISTAGE_PORT"
            ) from error
        raise LauncherError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    listening.set_inheritable(True)
    return listening


def address_of(listening: socket.socket) -> str:
    """Base URL under which this machine reaches a listening socket."""
    host, port = listening.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def free_port() -> int:
    """A TCP port on loopback that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
