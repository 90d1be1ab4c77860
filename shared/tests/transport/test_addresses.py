"""Addresses may hold passwords: whatever is wrong with one, no message shows it."""

from __future__ import annotations

import pytest

from omnistage.errors import BusUnavailable, ConfigError, TensorUnavailable
from omnistage.tensors.redis_store import RedisTensorStore
from omnistage.testing.servers import free_port
from omnistage.transport.addresses import checked, shown
from omnistage.transport.connect import connect
from omnistage.transport.options import BusOptions

CANARY = "ca/nar@y"


def everything(error: BaseException | None) -> str:
    """What the whole chain of errors says."""
    return f"{error!r} {everything(error.__cause__ or error.__context__)}" if error is not None else ""


@pytest.mark.parametrize(
    "url",
    [
        f"http://u:{CANARY}@host:4222",
        f"nats://u:{CANARY}@host:4222",
        f"nats://u:{CANARY}@",
        f"nats://u:{CANARY}@host:port",
        f"nats://u:{CANARY}@[::1",
        f"nats://good:4222,nats://u:{CANARY}@host:x",
        CANARY,
        "",
    ],
)
async def test_a_malformed_address_is_not_quoted(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        await connect(url, "t", name="test")
    assert "nar" not in refused.value.message
    assert "percent-encoded" in refused.value.message


async def test_a_broker_that_is_away_is_named_without_its_password() -> None:
    port = free_port()
    with pytest.raises(BusUnavailable) as away:
        await connect(f"nats://user:canary@127.0.0.1:{port}", "t", name="test", options=BusOptions(timeout_s=0.5))
    assert f"127.0.0.1:{port}" in away.value.message
    assert "canary" not in everything(away.value)


def test_hosts_and_ports_are_what_is_shown() -> None:
    assert shown("nats://u:canary@a:1, tls://b") == "a:1, b:4222"
    assert checked("nats://a:1,nats://b:2") == ["nats://a:1", "nats://b:2"]
    assert checked("memory://") == ["memory://"]


@pytest.mark.parametrize(
    "url", [f"redis://:{CANARY}@host:6379/0", f"redis://u:{CANARY}@[::1", f"http://:{CANARY}@host"]
)
async def test_a_malformed_address_of_a_tensor_server_is_not_quoted(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        await RedisTensorStore.open(url, namespace="t")
    assert "nar" not in repr(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


async def test_a_tensor_server_that_is_away_is_named_without_its_password() -> None:
    with pytest.raises(TensorUnavailable) as away:
        await RedisTensorStore.open(f"redis://:canary@127.0.0.1:{free_port()}/0", namespace="t", timeout_s=0.5)
    assert "canary" not in everything(away.value)
