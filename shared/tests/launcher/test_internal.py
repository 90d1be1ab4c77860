"""Systems that let services on other hosts in."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError

from omnistage.errors import ConfigError
from omnistage.launcher.faults import LauncherError
from omnistage.launcher.folder import DataFolder
from omnistage.launcher.internal import internal_address, redis_url
from omnistage.launcher.state import read_state
from omnistage.transport.connect import connect


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "nowhere.invalid"])
def test_only_an_address_of_this_machine_will_do(host: str) -> None:
    with pytest.raises(LauncherError, match=host):
        internal_address(host)


def test_names_become_addresses_and_passwords_are_quoted() -> None:
    assert internal_address("127.0.0.1") == "127.0.0.1"
    assert internal_address("localhost") in ("127.0.0.1", "::1")
    assert redis_url("10.0.0.1", 6379, "a/b@c:d") == "redis://:a%2Fb%40c%3Ad@10.0.0.1:6379/0"
    assert redis_url("fd00::1", 1, "p") == "redis://:p@[fd00::1]:1/0"


@pytest.mark.integration
def test_a_system_for_one_machine_tells_nobody(launched: Any) -> None:
    launched.start()
    launched.until_ready()
    said = launched.run("environment")
    assert (said.returncode, said.stdout) == (1, "")
    assert "--internal-host" in said.stderr


@pytest.mark.integration
@pytest.mark.parametrize("password", ["", 'it"s /quoted@'])
async def test_other_hosts_get_in_with_the_password_alone(
    launched: Any, monkeypatch: pytest.MonkeyPatch, password: str
) -> None:
    monkeypatch.setenv("OMNISTAGE_BUS_PASSWORD", password)
    launched.start("--internal-host", "127.0.0.1", "--bus-port", "0", "--tensor-port", "0")
    launched.until_ready()
    lines = launched.run("environment").stdout.splitlines()
    assert lines[0].endswith("models.yaml")
    said = dict(line.removeprefix("OMNISTAGE_").split("=", 1) for line in lines[1:])
    assert set(said) == {"NAMESPACE", "BUS_URL", "BUS_USER", "BUS_PASSWORD", "REDIS_URL"}
    assert len(said["BUS_PASSWORD"]) >= 32 or said["BUS_PASSWORD"] == password != ""

    bus = await connect(
        said["BUS_URL"], said["NAMESPACE"], name="far", user=said["BUS_USER"], password=said["BUS_PASSWORD"]
    )
    await bus.close()
    with pytest.raises(ConfigError):
        await connect(said["BUS_URL"], said["NAMESPACE"], name="far", user=said["BUS_USER"], password="wrong")

    for url in (said["REDIS_URL"], read_state(DataFolder(launched.data)).redis_url):
        async with Redis.from_url(url) as server:
            assert await server.ping()
    port = urlsplit(said["REDIS_URL"]).port
    assert port is not None
    async with Redis(host="127.0.0.1", port=port, password="wrong") as server:
        with pytest.raises(AuthenticationError):
            await server.ping()
    shown = [part for process in launched.processes() for part in process.cmdline()]
    assert not [part for part in shown if said["BUS_PASSWORD"] in part]
