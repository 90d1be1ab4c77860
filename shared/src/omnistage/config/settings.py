"""What every service is told by its environment: OMNISTAGE_* variables, listed here and in the services' settings."""

from __future__ import annotations

import os
import secrets
import socket
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from omnistage.errors import ConfigError

PREFIX = "OMNISTAGE_"

Names = Annotated[tuple[str, ...], NoDecode]
"""Comma-separated in the environment."""


class HubSettings(BaseSettings):
    """Where checkpoints of a model hub come from. Frozen.

    Attributes:
        hub_cache, offline: see `ServiceSettings`.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="ignore")

    hub_cache: Path | None = None
    offline: bool = False


class ServiceSettings(HubSettings):
    """Settings that all services share. Frozen; an unknown OMNISTAGE_ variable is an error.

    Attributes:
        hub_cache: folder for checkpoints of a model hub; none: huggingface_hub's own (HF_HUB_CACHE).
        offline: download no checkpoint: what is not in that folder cannot be loaded.
        namespace: first token of every subject, stream, bucket and key.
        instance: name of this process in subjects and metrics; made up when not given.
        bus_url: "nats://host:port", several separated by commas, or "memory://" inside one process.
        bus_user, bus_password: credentials for the broker; None for none.
        bus_replicas: copies that the broker keeps of everything; 3 on a cluster of three or more.
        redis_url: tensor store for readers on other hosts; None for none.
        arena_dir: folder of the shared-memory arena, the same for all services of a host; None for none.
        arena_mb: size of this instance's part of the arena in MiB; 0 for none.
        models: the models file and its overlays, in order.
        engines: which engines of the models file this instance runs; empty for all of its service.
        metrics_host: address that the metrics port listens on.
        metrics_port: serves /metrics, /health and /ready; None for none.
        otlp_endpoint: OpenTelemetry collector (HTTP), or "file:PATH" for one JSON line per span; None for none.
        log_level: "debug", "info", "warning" or "error".
        log_json: one JSON object per line; else text for people.
        threads: OpenMP threads of this process.
        drain_s: how long running requests may finish after a stop was asked for.
        parent_pid: leave when this process is gone; None for none.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    namespace: str = Field("omni", pattern=r"^[a-z0-9_-]{1,32}$")
    instance: str = Field("", pattern=r"^[a-z0-9_-]{0,64}$")
    bus_url: str = "nats://127.0.0.1:4222"
    bus_user: str | None = None
    bus_password: SecretStr | None = None
    bus_replicas: int = Field(1, ge=1, le=5)
    redis_url: SecretStr | None = None
    arena_dir: Path | None = None
    arena_mb: int = Field(64, ge=0)
    models: Annotated[tuple[Path, ...], NoDecode] = ()
    engines: Names = ()
    metrics_host: str = "127.0.0.1"
    metrics_port: int | None = Field(None, ge=0, le=65535)
    otlp_endpoint: str | None = None
    log_level: str = Field("info", pattern=r"^(debug|info|warning|error)$")
    log_json: bool = True
    threads: int = Field(1, ge=1)
    drain_s: float = Field(30.0, ge=0)
    parent_pid: int | None = None

    @classmethod
    def split_names(cls, value: object) -> object:
        """Comma-separated text to a tuple; anything else as it is."""
        return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


S = TypeVar("S", bound=ServiceSettings)


def load_settings(kind: type[S], service: str) -> S:
    """Read the settings of a service from the environment.

    Raises:
        ConfigError: a value is wrong or a variable is unknown, each named.
    """
    known = {PREFIX + name.upper() for name in kind.model_fields}
    unknown = sorted(name for name in os.environ if name.startswith(PREFIX) and name not in known)
    if unknown:
        raise ConfigError(f"unknown settings in the environment: {', '.join(unknown)}")
    values: dict[str, Any] = {
        name: ServiceSettings.split_names(os.environ[PREFIX + name.upper()])
        for name, field in kind.model_fields.items()
        if any(isinstance(part, type) and part is NoDecode for part in field.metadata)
        and PREFIX + name.upper() in os.environ
    }
    try:
        settings = kind(**values)
    except ValidationError as error:
        faults = "; ".join(
            f"{PREFIX}{'_'.join(str(part) for part in fault['loc']).upper()}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)
        )
        raise ConfigError(f"wrong settings: {faults}") from error
    if settings.instance:
        return settings
    host = "".join(char if char.isalnum() else "-" for char in socket.gethostname().lower())[:24]
    return settings.model_copy(update={"instance": f"{service}-{host}-{secrets.token_hex(4)}"})
