"""What the environment may say to the gateway; the only reader of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, IPvAnyNetwork, SecretStr
from pydantic_settings import NoDecode

from omnistage.config import ServiceSettings, load_settings
from omnistage.config.settings import Names
from omnistage.errors import ConfigError
from omnistage_gateway.fetching import FetchPolicy
from omnistage_gateway.fetching.policy import SCHEMES
from omnistage_gateway.voices import VoiceLimits


def _known_schemes(schemes: tuple[str, ...]) -> tuple[str, ...]:
    if not set(schemes) <= set(SCHEMES):
        raise ValueError(f"only {', '.join(SCHEMES)} can be loaded")
    return schemes


class Settings(ServiceSettings):
    """Settings of the gateway, beside those of every service.

    Attributes:
        host, port: where the HTTP API listens.
        listen_fd: an inherited listening socket to use instead; None for none.
        api_keys: "name=key" pairs, comma-separated; empty lets everybody in. The name is the tenant in fair shares.
        api_keys_file: a file of such pairs, one a line, "#" begins a comment; a file keeps keys out of the process
            table.
        cors_origins: origins whose pages may call the API; "*" for all.
        body_mb: largest request body in MiB.
        max_waiting: requests in the waiting line, in all.
        max_wait_s: a request that would wait longer in the line is refused at once; few seconds keep streams prompt
            under overload, many let bursts through.
        max_waiting_per_key: requests in the waiting line of one key.
        request_read_s: a client that stands still for so long while it sends its request gets a 408, or is cut off.
        slow_reader_s: a client that takes nothing of its answer for so long is cut off.
        fetch_schemes: kinds of URLs that a request may name, of https, http and data; empty for none.
        fetch_hosts: hosts that may be loaded from, "example.com" or "*.example.com"; empty for any.
        fetch_networks: networks that may be loaded from although they are not public, e.g. "10.1.0.0/16".
        fetch_mb: largest content of a URL in MiB.
        fetch_s: time for loading a URL.
        fetch_redirects: how often a URL's server may send on to another.
        voices_per_key: voices that an API key may keep, and consents.
    """

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=0, le=65535)
    listen_fd: int | None = Field(None, ge=0)
    api_keys: SecretStr | None = None
    api_keys_file: Path | None = None
    cors_origins: Names = ()
    body_mb: int = Field(16, ge=1, le=1024)
    max_waiting: int = Field(1024, ge=0)
    max_waiting_per_key: int = Field(512, ge=0)
    max_wait_s: float = Field(30.0, ge=0)
    request_read_s: float = Field(30.0, gt=0)
    slow_reader_s: float = Field(60.0, gt=0)
    fetch_schemes: Annotated[Names, AfterValidator(_known_schemes)] = ("https", "data")
    fetch_hosts: Names = ()
    fetch_networks: Annotated[tuple[IPvAnyNetwork, ...], NoDecode] = ()
    fetch_mb: int = Field(25, ge=1, le=1024)
    fetch_s: float = Field(30.0, gt=0)
    fetch_redirects: int = Field(3, ge=0, le=20)
    voices_per_key: int = Field(100, ge=0, le=10_000)

    def fetch_policy(self) -> FetchPolicy:
        """The rules for URLs that clients name."""
        return FetchPolicy(
            schemes=self.fetch_schemes,
            hosts=self.fetch_hosts,
            networks=self.fetch_networks,
            max_bytes=self.fetch_mb * 2**20,
            total_s=self.fetch_s,
            max_redirects=self.fetch_redirects,
        )

    def voice_limits(self) -> VoiceLimits:
        """How much clients may leave here."""
        return VoiceLimits(voices=self.voices_per_key, consents=self.voices_per_key)

    def keys(self) -> dict[str, str]:
        """Name -> key, of both sources.

        Raises:
            ConfigError: a pair is malformed or a name stands twice (neither is shown, since it may be a key), or keys
                were asked for and none is named.
        """
        pairs = self.api_keys.get_secret_value().split(",") if self.api_keys is not None else []
        if self.api_keys_file is not None:
            try:
                lines = self.api_keys_file.read_text(encoding="utf-8").splitlines()
            except OSError as error:
                raise ConfigError(f"OMNISTAGE_API_KEYS_FILE: {error.strerror or error}") from error
            pairs += [line for line in lines if not line.lstrip().startswith("#")]
        keys: dict[str, str] = {}
        for number, pair in enumerate((pair for pair in pairs if pair.strip()), start=1):
            name, separator, key = (part.strip() for part in pair.partition("="))
            if not (separator and name and key) or name in keys:
                raise ConfigError(f"API key number {number}: name=key was expected, each name once")
            keys[name] = key
        if not keys and self._asks_for_keys():
            raise ConfigError("OMNISTAGE_API_KEYS or its file is set but names no key; unset it to let everybody in")
        return keys

    def _asks_for_keys(self) -> bool:
        """Whether somebody meant to name keys; an empty variable is how compose files leave one out."""
        return self.api_keys_file is not None or bool(self.api_keys and self.api_keys.get_secret_value())


def read_settings() -> Settings:
    """Settings of this process. Raises ConfigError naming what is wrong."""
    return load_settings(Settings, "gateway")
