"""Servers that the bus tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("omnistage.testing.bus_conformance")

from omnistage.testing.servers import NatsServer, running_nats  # noqa: E402


@pytest.fixture(scope="session")
def broker() -> Iterator[NatsServer]:
    with running_nats() as server:
        yield server
