"""How large media may be, and how they are refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

from omnistage.errors import InvalidRequest

INVALID = "invalid_media"
TOO_LARGE = "media_too_large"
TOO_LONG = "media_too_long"

LIBAV_OPTIONS = {"max_streams": "16"}
"""For opening files: a header cannot ask for work without end."""


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """What decoding stops at, whatever a file's header says.

    Attributes:
        pixels: of a picture, and of a frame of a video.
        seconds: of a recording, and of a video.
        frames: of a video, before any are left out.
    """

    pixels: int = 40_000_000
    seconds: float = 600.0
    frames: int = 36_000


def refuse(reason: str, code: str = INVALID) -> NoReturn:
    """Raise the `InvalidRequest` of a file that cannot be taken."""
    raise InvalidRequest(reason, code=code)


def no_other_file(_url: str, _flags: int, _options: dict[str, Any]) -> NoReturn:
    """For libav: a file that a client sends opens no other."""
    raise ValueError("media open no other files")
