"""What can go wrong before or beside the system itself; the command line says each in one line and exits with 1."""

from __future__ import annotations

from omnistage.errors import OmnistageError


class LauncherError(OmnistageError):
    """Something that the person at the terminal can act on."""

    code = "launcher_error"


class PortInUse(LauncherError):
    """Another program listens on the address already."""


class AlreadyRunning(LauncherError):
    """A launcher holds this data folder."""


class NotRunning(LauncherError):
    """No launcher holds this data folder."""


class StartFailed(LauncherError):
    """A process could not start, or not every model became ready in time."""
