"""What the launcher takes from the environment, and the environment that it gives to what it starts."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping

from omnistage.config.settings import PREFIX, ServiceSettings
from omnistage.config.threads import ALLOCATOR, thread_environment
from omnistage.launcher.folder import MARK, DataFolder

_COMMON = {PREFIX + name.upper() for name in ServiceSettings.model_fields}

_OWN = {PREFIX + name for name in ("PORT", "HOST", "DATA", "MODELS", "INTERNAL_HOST")}
"""Options of the launcher itself; it hands on what concerns a service."""


def server_password() -> str:
    """Of the broker and the tensor server: what the environment says, so that it stays the same for other hosts, else
    a new one."""
    return os.environ.get(PREFIX + "BUS_PASSWORD") or secrets.token_urlsafe(24)


def server_environment(folder: DataFolder) -> dict[str, str]:
    """Environment of the broker and the tensor server."""
    return _without_ours() | {MARK: str(folder.root)}


def service_environment(
    folder: DataFolder, service: str, given: Mapping[str, str], threads: int, defaults: Mapping[str, str]
) -> dict[str, str]:
    """Environment of a service: `given` over what the launcher was started with over `defaults`, named without prefix.

    Settings of the gateway alone (keys, limits) go to the gateway alone, since services refuse unknown variables.
    """
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name.startswith(PREFIX) and name not in _OWN and (name in _COMMON or service == "gateway")
    }
    ours = {PREFIX + name: value for name, value in given.items()}
    unsaid = {PREFIX + name: value for name, value in defaults.items()}
    constant = {MARK: str(folder.root), "PYTHONUNBUFFERED": "1"}
    numeric = {PREFIX + "THREADS": str(threads)} | thread_environment(threads) | ALLOCATOR
    return _without_ours() | unsaid | inherited | ours | numeric | constant


def detached_environment() -> dict[str, str]:
    """Environment of a launcher that goes on in the background."""
    return dict(os.environ)


def _without_ours() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
