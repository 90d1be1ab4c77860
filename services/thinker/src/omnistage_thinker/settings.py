"""What the environment may say to the thinker; the only reader of it."""

from __future__ import annotations

from omnistage.config import ServiceSettings, load_settings


class Settings(ServiceSettings):
    """The thinker has no settings of its own: engines are described in the models file."""


def read_settings() -> Settings:
    """Settings of this process. Raises ConfigError naming what is wrong."""
    return load_settings(Settings, "thinker")
