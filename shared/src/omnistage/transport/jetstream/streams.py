"""Creation and reconciliation of streams and consumers: idempotent, and safe from many processes at once."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from omnistage.errors import ConfigError
from omnistage.transport.jetstream import wire
from omnistage.transport.jetstream.connection import Connection
from omnistage.transport.topology import ConsumerConfig, StreamConfig, differs, is_of_later_version

_ROUNDS = 3


class Streams:
    """What this process needs on the broker; remembered, so that it can be asserted again."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._streams: dict[str, StreamConfig] = {}
        self._consumers: dict[tuple[str, str], ConsumerConfig] = {}

    async def need_stream(self, config: StreamConfig) -> None:
        """Create the stream, or change it to this configuration.

        Raises:
            ConfigError: the name is taken by a stream with other subjects, or the broker has no room for it.
        """
        await self._assert_stream(config)
        self._streams[config["name"]] = config

    async def need_consumer(self, config: ConsumerConfig) -> None:
        """Create the durable consumer, or change it to this configuration."""
        await self._assert_consumer(config)
        self._consumers[config.stream, config.name] = config

    async def reassert(self) -> None:
        """Assert everything again, after the broker was away."""
        for stream in list(self._streams.values()):
            await self._assert_stream(stream)
        for consumer in list(self._consumers.values()):
            await self._assert_consumer(consumer)

    async def reassert_consumer(self, stream: str, name: str) -> None:
        """Assert one consumer again, that somebody deleted."""
        await self._assert_stream(self._streams[stream])
        await self._assert_consumer(self._consumers[stream, name])

    async def stream_config(self, name: str) -> dict[str, Any] | None:
        """Configuration of a stream as the broker has it; None if it has none."""
        try:
            info = await self._connection.api(f"$JS.API.STREAM.INFO.{name}")
        except wire.ApiError as error:
            if error.number == wire.STREAM_NOT_FOUND:
                return None
            raise error.mapped() from error
        config: dict[str, Any] = info["config"]
        return config

    async def subjects_of(self, name: str, pattern: str) -> list[str]:
        """Subjects of a stream that hold at least one message."""
        found: list[str] = []
        while True:
            try:
                info = await self._connection.api(
                    f"$JS.API.STREAM.INFO.{name}", {"subjects_filter": pattern, "offset": len(found)}
                )
            except wire.ApiError as error:
                raise error.mapped() from error
            page = info["state"].get("subjects") or {}
            found.extend(page)
            if not page or len(found) >= info.get("total", 0):
                return found

    async def remove_consumers(self, stream: str, kept: Container[str]) -> list[str]:
        """Remove all consumers of a stream but some; returns the names of those removed."""
        found: list[str] = []
        try:
            while True:
                page = await self._connection.api(f"$JS.API.CONSUMER.NAMES.{stream}", {"offset": len(found)})
                found.extend(page.get("consumers") or ())
                if not page.get("consumers") or len(found) >= page.get("total", 0):
                    break
            removed = [name for name in found if name not in kept]
            for name in removed:
                await self._connection.api(f"$JS.API.CONSUMER.DELETE.{stream}.{name}")
                self._consumers.pop((stream, name), None)
        except wire.ApiError as error:
            raise error.mapped() from error
        return removed

    async def purge(self, name: str, pattern: str) -> None:
        """Remove every message on these subjects."""
        try:
            await self._connection.api(f"$JS.API.STREAM.PURGE.{name}", {"filter": pattern})
        except wire.ApiError as error:
            if error.number != wire.STREAM_NOT_FOUND:
                raise error.mapped() from error

    async def _assert_stream(self, config: StreamConfig) -> None:
        name = config["name"]
        for _ in range(_ROUNDS):
            existing = await self.stream_config(name)
            action = "CREATE"
            if existing is not None:
                if is_of_later_version(existing) and set(config["subjects"]) <= set(existing["subjects"]):
                    return
                if not set(existing["subjects"]) <= set(config["subjects"]):
                    raise ConfigError(f"stream {name} belongs to somebody else: it captures {existing['subjects']}")
                if not differs(config, existing):
                    return
                action = "UPDATE"
                config = existing | config
            try:
                await self._connection.api(f"$JS.API.STREAM.{action}.{name}", config)
                return
            except wire.ApiError as error:
                if error.number in wire.STORAGE_EXHAUSTED:
                    raise ConfigError(
                        f"the broker has no room for stream {name} ({error.description}): give it more storage "
                        "(max_file_store in its configuration)"
                    ) from error
                # Somebody else was faster: look again.
                if error.number not in (wire.STREAM_NAME_IN_USE, wire.STREAM_NOT_FOUND):
                    raise error.mapped() from error
        raise ConfigError(f"stream {name} is configured differently again and again")

    async def _assert_consumer(self, config: ConsumerConfig) -> None:
        try:
            info = await self._connection.api(f"$JS.API.CONSUMER.INFO.{config.stream}.{config.name}")
        except wire.ApiError as error:
            if error.number != wire.CONSUMER_NOT_FOUND:
                raise error.mapped() from error
        else:
            existing = info["config"]
            if is_of_later_version(existing) or not differs(config.body, existing):
                return
        subject = f"$JS.API.CONSUMER.CREATE.{config.stream}.{config.name}.{config.body['filter_subject']}"
        try:
            await self._connection.api(subject, {"stream_name": config.stream, "config": config.body})
        except wire.ApiError as error:
            raise error.mapped() from error
