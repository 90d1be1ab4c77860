"""Which services a models file needs, and how each of their instances is started."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from omnistage.config import ModelsFile
from omnistage.errors import ConfigError
from omnistage.launcher.folder import DataFolder
from omnistage.launcher.listening import free_port
from omnistage.launcher.process import ChildSpec
from omnistage.launcher.settings import service_environment
from omnistage.pipelines import GATEWAY

MAX_INSTANCES = 64
_ARENA_MB = {"talker": 192, "codec": 64}
"""Shared memory of an instance in MiB, by what it writes there: frames are the bulk, then samples."""

_OTHER_ARENA_MB = 16
_SMALLEST_ARENA_MB = 4


def services_of(models: ModelsFile) -> tuple[str, ...]:
    """The gateway, and the services of the engines that some model uses, in the order of the file."""
    used = {key for model in models.models.values() for key in model.nodes.values()}
    services = (spec.service for key, spec in models.engines.items() if key in used)
    return tuple(dict.fromkeys((GATEWAY, *services)))


def instance_counts(models: ModelsFile, scale: Mapping[str, int]) -> dict[str, int]:
    """How many instances of each service to start.

    Raises:
        ConfigError: `scale` names a service that the models file does not need, or a count out of range; or a
            service is not installed.
    """
    services = services_of(models)
    for service, count in scale.items():
        check_scale(service, count, services)
    for service in services:
        if importlib.util.find_spec(f"omnistage_{service}") is None:
            raise ConfigError(f"the models file needs the service {service!r}, which is not installed")
    return {service: scale.get(service, 1) for service in services}


def check_scale(service: str, count: int, services: tuple[str, ...]) -> None:
    """Raises ConfigError for a service that is not part of the system, or a count out of range."""
    if service not in services:
        raise ConfigError(f"there is no service {service!r} here; there are: {', '.join(services)}")
    if not 1 <= count <= MAX_INSTANCES:
        raise ConfigError(f"{service}={count}: between 1 and {MAX_INSTANCES} instances can run")


@dataclass(frozen=True)
class Deployment:
    """All that an instance must be told.

    Attributes:
        models: the models file and its overlays.
        listening_fd: the socket of the HTTP API, for gateways.
        arena_mb: shared memory of an instance of each service in MiB, where the environment does not say.
    """

    folder: DataFolder
    models: tuple[Path, ...]
    namespace: str
    host: str
    port: int
    listening_fd: int
    bus_url: str
    bus_user: str
    bus_password: str
    redis_url: str
    arena_mb: Mapping[str, int]

    def spec(self, service: str, number: int, python: str = sys.executable, *, threads: int = 1) -> ChildSpec:
        """How to start an instance. Each start has a name of its own, so that nobody takes a new process for one
        that died: its claims and shared-memory blocks are still known by its name.

        Args:
            python: the interpreter of the environment that the service is installed in.
            threads: OpenMP threads of the instance.
        """
        instance = f"{service}-{number}-{secrets.token_hex(2)}"
        metrics_port = free_port()
        given = {
            "NAMESPACE": self.namespace,
            "INSTANCE": instance,
            "BUS_URL": self.bus_url,
            "BUS_USER": self.bus_user,
            "BUS_PASSWORD": self.bus_password,
            "REDIS_URL": self.redis_url,
            "ARENA_DIR": str(self.folder.arena),
            "METRICS_PORT": str(metrics_port),
            "PARENT_PID": str(os.getpid()),
        }
        if self.models:
            given["MODELS"] = ",".join(str(path) for path in self.models)
        pass_fds: tuple[int, ...] = ()
        if service == GATEWAY:
            given |= {"HOST": self.host, "PORT": str(self.port), "LISTEN_FD": str(self.listening_fd)}
            pass_fds = (self.listening_fd,)
        defaults = {"ARENA_MB": str(self.arena_mb[service])}
        environment = service_environment(self.folder, service, given, threads, defaults)
        return ChildSpec((python, "-m", f"omnistage_{service}"), environment, instance, pass_fds, metrics_port)


def threads_each(instances: int) -> int:
    """An instance's share of the cores, at least one."""
    return max(1, (os.cpu_count() or 1) // max(1, instances))


def arena_mb(folder: DataFolder, counts: Mapping[str, int]) -> dict[str, int]:
    """Size of an instance's shared-memory partition in MiB, by service.

    All instances together take at most half of what is free, and each less in proportion where that is too little;
    0 if it is hardly anything, as with a container's default /dev/shm (bulk goes to the tensor server then).
    """
    wanted = {service: _ARENA_MB.get(service, _OTHER_ARENA_MB) for service in counts}
    total = sum(wanted[service] * count for service, count in counts.items())
    room = shutil.disk_usage(folder.arena).free // (1 << 20) // 2
    shares = {service: min(size, size * room // max(1, total)) for service, size in wanted.items()}
    return {service: share if share >= _SMALLEST_ARENA_MB else 0 for service, share in shares.items()}
