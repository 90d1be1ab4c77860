"""Stages on another host: started by hand with what `omnistage environment` says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from tests.support.inspection import metric
from tests.support.relay import Relay
from tests.support.system import System

_STOP_S = 40.0
_ARENA_MB = "24"


@dataclass(frozen=True)
class Far:
    """An instance there."""

    service: str
    instance: str
    host: str
    metrics_port: int

    def metric(self, name: str, **labels: str) -> float:
        """Sum of one of its metrics over all samples that have these labels."""
        return metric(self.metrics_port, name, self.host, **labels)


@dataclass
class FarHost:
    """The host.

    Attributes:
        system: what it takes part in.
        relay: the link between them.
        relay_host: its near end as this host reaches it.
        folder: for logs.
        prefix: what makes a command run there.
        arena: folder of its shared memory, as it is called there.
        host: its address.
    """

    system: System
    relay: Relay
    relay_host: str
    folder: Path
    arena: str
    prefix: Sequence[str] = ()
    host: str = "127.0.0.1"
    instances: list[Far] = field(default_factory=list)

    def of(self, service: str) -> Far:
        return next(far for far in self.instances if far.service == service)

    def said(self) -> dict[str, str]:
        """What the system says that other hosts must be told, with the link's ports in the place of the servers'."""
        lines = self.system.omnistage("environment").splitlines()
        said = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
        for name in ("OMNISTAGE_BUS_URL", "OMNISTAGE_REDIS_URL"):
            there = urlsplit(said[name])
            assert there.hostname is not None
            assert there.port is not None
            port = self.relay.lead_to(there.hostname, there.port)
            said[name] = said[name].replace(f"{there.hostname}:{there.port}", f"{self.relay_host}:{port}")
        return said

    @contextmanager
    def running(self, services: Sequence[str], metrics_ports: Sequence[int]) -> Iterator[None]:
        """Start an instance of each service; end them afterwards as an operator does."""
        common = {name: value for name, value in os.environ.items() if not name.startswith("OMNISTAGE_")}
        common |= self.said() | {
            "OMNISTAGE_MODELS": ",".join(self.system.state.models),
            "OMNISTAGE_ARENA_DIR": self.arena,
            "OMNISTAGE_ARENA_MB": _ARENA_MB,
            "OMNISTAGE_METRICS_HOST": self.host,
            "OMNISTAGE_DRAIN_S": "5",
        }
        with ExitStack() as stack:
            for service, port in zip(services, metrics_ports, strict=True):
                far = Far(service, f"far-{service}", self.host, port)
                own = {"OMNISTAGE_INSTANCE": far.instance, "OMNISTAGE_METRICS_PORT": str(port)}
                stack.enter_context(self._one(far, common | own))
                self.instances.append(far)
            yield

    @contextmanager
    def _one(self, far: Far, environment: dict[str, str]) -> Iterator[None]:
        log = self.folder / f"{far.instance}.log"
        command = [*self.prefix, sys.executable, "-m", f"omnistage_{far.service}"]
        with log.open("w") as output:
            process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            try:
                yield
                assert process.poll() is None, f"{far.instance} ended with {process.returncode}:\n{log.read_text()}"
                process.terminate()
                assert process.wait(_STOP_S) == 0, log.read_text()
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
