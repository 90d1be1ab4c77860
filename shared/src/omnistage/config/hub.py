"""Checkpoints of a model hub: found in the cache of this machine, else downloaded into it once."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from pydantic import ValidationError

from omnistage.config.settings import PREFIX, HubSettings
from omnistage.errors import ConfigError

HUB_PREFIX = "hub:"

FILES = ("*.safetensors", "*.json", "*.txt")
"""What is downloaded, in subfolders too: weights, configurations, tokenizers. No pickles, and no code."""

_ID = re.compile(
    r"(?P<repository>[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95})"
    r"(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]{0,199}))?"
)


class NotDownloaded(ConfigError):
    """A checkpoint that may be downloaded, but has not been."""


@dataclass
class Download:
    """A download as others see it; `stop` may be called from any thread.

    Attributes:
        tell: called from the downloading threads with the bytes that are here and the bytes of all files as far as
            their number is known; None shows the library's own bars, on a terminal.
    """

    tell: Callable[[int, int], None] | None = None
    stopped: bool = field(default=False, init=False)

    def stop(self) -> None:
        """Give up with the next piece that arrives; what is here stays, and the next download goes on from it."""
        self.stopped = True


def is_hub_id(name: str) -> bool:
    """Whether a checkpoint's name means one of a hub."""
    return name.startswith(HUB_PREFIX)


def hub_snapshot(name: str, download: Download | None) -> Path:
    """The folder of a hub's checkpoint on this machine.

    A snapshot in the cache is taken as it is: a branch is not asked whether it has moved on meanwhile.

    Args:
        name: "hub:ORGANISATION/NAME@REVISION"; the revision (branch, tag or commit) is "main" where none is given.
        download: how to download what is not here; None does not.

    Raises:
        NotDownloaded: it is not here, and `download` is None.
        ConfigError: the name is wrong, the library is not installed, or the checkpoint cannot be had; says why.
    """
    match = _ID.fullmatch(name.removeprefix(HUB_PREFIX))
    if match is None or ".." in name:
        raise ConfigError(f"checkpoint {name[:200]!r}: expected hub:ORGANISATION/NAME@REVISION")
    snapshot = _Snapshot(name, match["repository"], match["revision"] or "main", _settings())
    folder = snapshot.cached()
    if folder is None:
        if snapshot.settings.offline:
            raise ConfigError(f"checkpoint {name}: it is not in the cache{snapshot.place}, and {PREFIX}OFFLINE is set")
        if download is None:
            raise NotDownloaded(f"checkpoint {name}: it is not in the cache{snapshot.place} yet")
        folder = snapshot.downloaded(download)
    if not folder.is_dir() or not any(folder.iterdir()):
        raise ConfigError(f"checkpoint {name}: the repository has none of {', '.join(FILES)}")
    return folder


def _settings() -> HubSettings:
    try:
        return HubSettings()
    except ValidationError as error:
        names = ", ".join(f"{PREFIX}{str(fault['loc'][0]).upper()}" for fault in error.errors())
        raise ConfigError(f"wrong settings: {names}") from error


@dataclass(frozen=True)
class _Snapshot:
    name: str
    repository: str
    revision: str
    settings: HubSettings

    @property
    def place(self) -> str:
        return "" if self.settings.hub_cache is None else f" {self.settings.hub_cache}"

    def cached(self) -> Path | None:
        """Where it lies, if all of it is here."""
        try:
            from huggingface_hub.errors import LocalEntryNotFoundError
        except ImportError as error:
            raise ConfigError(
                f"checkpoint {self.name}: this needs the package huggingface_hub (pip install 'omnistage[hub]')"
            ) from error
        try:
            return self._ask(local_files_only=True)
        except LocalEntryNotFoundError:
            return None

    def downloaded(self, download: Download) -> Path:
        """Download what is missing."""
        try:
            return self._ask(tqdm_class=_meters(download))
        except Exception as error:  # The library lets its HTTP client's errors through, whichever client that is.
            why = "stopped" if download.stopped else _why(error)
            raise ConfigError(f"checkpoint {self.name}: cannot be downloaded: {why}") from error

    def _ask(self, **options: Any) -> Path:
        from huggingface_hub import snapshot_download

        path = snapshot_download(
            self.repository,
            revision=self.revision,
            cache_dir=self.settings.hub_cache,
            allow_patterns=list(FILES),
            library_name="omnistage",
            **options,
        )
        return Path(path)


def _why(error: Exception) -> str:
    """A library's error in a few words: of its own text the first line, without its advice."""
    from huggingface_hub import errors

    cause = error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) and error.__cause__ else error
    for kind, why in (
        (errors.GatedRepoError, "its owner must grant access to it, and HF_TOKEN must be a token of who has it"),
        (errors.RepositoryNotFoundError, "there is no such repository, or HF_TOKEN is no token of who may read it"),
        (errors.RevisionNotFoundError, "the repository has no such revision"),
        (errors.OfflineModeIsEnabled, "HF_HUB_OFFLINE is set"),
    ):
        if isinstance(cause, kind):
            return why
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}{': ' if lines else ''}{lines[0][:300] if lines else ''}"


class _Stopped(Exception):
    """Ends the library's threads."""


def _meters(download: Download) -> type[Any] | None:
    """A class that the library takes for its progress bars, which tells how many bytes are here."""
    if download.tell is None:
        return None
    tell: Callable[[int, int], None] = download.tell
    bars: list[_Meter] = []

    class Meter(_Meter):
        def __init__(self, *_arguments: Any, **options: Any) -> None:
            super().__init__(options.get("total") or 0)
            if options.get("unit") == "B":
                bars.append(self)

        def update(self, count: float | None = 1) -> None:
            if download.stopped:
                raise _Stopped
            self.n += int(count or 0)
            if self in bars:
                # One bar counts what came over the network, one what was written; either may stand still.
                tell(max(bar.n for bar in bars), max(bar.total or 0 for bar in bars))

    return Meter


class _Meter:
    """What the library asks of a progress bar (tqdm's), showing nothing."""

    def __init__(self, total: int) -> None:
        self.n = 0
        self.total: int | None = total
        self.format_dict: dict[str, Any] = {}

    def refresh(self) -> None:
        """Nothing is shown."""

    def set_description(self, _text: str | None = None, refresh: bool = True) -> None:
        """Nothing is shown."""

    set_description_str = set_postfix_str = set_description

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> _Meter:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
