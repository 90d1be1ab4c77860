"""Servers that the bus tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("omnistage.testing.bus_conformance")

from omnistage.testing.containers import docker_answers, nats_container  # noqa: E402
from omnistage.testing.servers import NatsServer, running_nats  # noqa: E402


@pytest.fixture(scope="session")
def broker() -> Iterator[NatsServer]:
    with running_nats() as server:
        yield server


@pytest.fixture(scope="session", params=["packaged", "container"] if docker_answers() else ["packaged"])
def broker_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """The packaged broker and, where there is Docker, that of the public image."""
    if request.param == "packaged":
        yield request.getfixturevalue("broker").url
        return
    with nats_container() as url:
        yield url
