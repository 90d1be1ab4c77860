"""A second host on this one: a network namespace on a cable of its own, with a /dev/shm of its own. Needs root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

_MOUNT = "mount -t tmpfs -o mode=1777,size=256m tmpfs /dev/shm && echo mounted && exec sleep infinity"


class NoNamespaces(Exception):
    """This process may not make network namespaces."""


@dataclass(frozen=True)
class Namespace:
    """The second host.

    Attributes:
        near, far: addresses of the two ends of the cable.
        keeper: the process that keeps its mounts.
    """

    name: str
    near: str
    far: str
    keeper: int = 0

    @property
    def within(self) -> tuple[str, ...]:
        """What makes a command run there; it becomes that command."""
        return ("nsenter", "--target", str(self.keeper), "--mount", "--net")

    def lose(self, probability: float) -> None:
        """From now on packets are lost in either direction."""
        for chain, side in (("INPUT", "-i"), ("OUTPUT", "-o")):
            statistic = ("-m", "statistic", "--mode", "random", "--probability", str(probability))
            self._iptables("-A", chain, side, self.name, *statistic, "-j", "DROP")

    def cut(self) -> None:
        """No packet passes any more."""
        self._iptables("-I", "INPUT", "-i", self.name, "-j", "DROP")
        self._iptables("-I", "OUTPUT", "-o", self.name, "-j", "DROP")

    def heal(self) -> None:
        self._iptables("-D", "INPUT", "-i", self.name, "-j", "DROP")
        self._iptables("-D", "OUTPUT", "-o", self.name, "-j", "DROP")

    def lost(self) -> int:
        """Packets that were dropped so far."""
        listed = _run("ip", "netns", "exec", self.name, "iptables", "-L", "-n", "-v", "-x")
        return sum(int(line.split()[0]) for line in listed.splitlines() if " DROP " in line and "statistic" in line)

    def _iptables(self, *arguments: str) -> None:
        _run("ip", "netns", "exec", self.name, "iptables", "-w", *arguments)


@contextmanager
def second_host() -> Iterator[Namespace]:
    """A network namespace and the cable to it.

    Raises:
        NoNamespaces: they are not permitted here, or `ip` or `iptables` is not installed.
    """
    number = os.getpid() % 16_000
    network = f"10.{200 + number // 256 % 50}.{number % 256}"
    host = Namespace(f"far{number}", f"{network}.1", f"{network}.2")
    try:
        _run("ip", "netns", "add", host.name)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or error
        raise NoNamespaces(f"a network namespace needs root and the commands ip and iptables: {said}") from error
    try:
        near, inside = f"near{number}", ("ip", "-n", host.name)
        _run("ip", "link", "add", near, "type", "veth", "peer", "name", host.name, "netns", host.name)
        _run("ip", "addr", "add", f"{host.near}/30", "dev", near)
        _run("ip", "link", "set", near, "up")
        _run(*inside, "addr", "add", f"{host.far}/30", "dev", host.name)
        _run(*inside, "link", "set", host.name, "up")
        _run(*inside, "link", "set", "lo", "up")
        with _keeper(host.name) as keeper:
            yield replace(host, keeper=keeper)
    finally:
        _run("ip", "netns", "del", host.name)


@contextmanager
def _keeper(name: str) -> Iterator[int]:
    command = ("ip", "netns", "exec", name, "unshare", "-m", "sh", "-c", _MOUNT)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "mounted\n", "cannot mount a /dev/shm of its own"
            yield process.pid
        finally:
            process.kill()


def _run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout
