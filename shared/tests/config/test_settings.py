"""Settings come from the environment, and nothing in it is ignored."""

from __future__ import annotations

from pathlib import Path

import pytest

from omnistage.config import ServiceSettings, limit_threads, load_settings
from omnistage.config.settings import Names
from omnistage.config.threads import thread_environment
from omnistage.errors import ConfigError


class Own(ServiceSettings):
    """Settings of a service with one more list."""

    origins: Names = ()


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("OMNISTAGE_")]:
        monkeypatch.delenv(name)


def test_an_empty_environment_gives_defaults_and_a_fresh_instance() -> None:
    first, second = load_settings(ServiceSettings, "codec"), load_settings(ServiceSettings, "codec")
    assert first.namespace == "omni"
    assert first.metrics_port is None
    assert first.instance.startswith("codec-")
    assert first.instance != second.instance


def test_values_are_read_and_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNISTAGE_INSTANCE", "codec-1")
    monkeypatch.setenv("OMNISTAGE_ARENA_MB", "8")
    monkeypatch.setenv("OMNISTAGE_MODELS", "a.yaml, b.yaml")
    monkeypatch.setenv("OMNISTAGE_ENGINES", "one,,two ")
    monkeypatch.setenv("OMNISTAGE_ORIGINS", "https://a.example")
    monkeypatch.setenv("OMNISTAGE_BUS_PASSWORD", "s3cret")
    settings = load_settings(Own, "codec")
    assert settings.instance == "codec-1"
    assert settings.arena_mb == 8
    assert settings.models == (Path("a.yaml"), Path("b.yaml"))
    assert settings.engines == ("one", "two")
    assert settings.origins == ("https://a.example",)
    assert "s3cret" not in repr(settings)
    assert settings.bus_password is not None
    assert settings.bus_password.get_secret_value() == "s3cret"


def test_an_unknown_variable_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNISTAGE_AREAN_MB", "8")
    with pytest.raises(ConfigError, match="OMNISTAGE_AREAN_MB"):
        load_settings(ServiceSettings, "codec")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NAMESPACE", "a.b"),
        ("NAMESPACE", ""),
        ("INSTANCE", "Upper"),
        ("ARENA_MB", "-1"),
        ("ARENA_MB", "many"),
        ("METRICS_PORT", "65536"),
        ("LOG_LEVEL", "loud"),
        ("THREADS", "0"),
        ("BUS_REPLICAS", "0"),
    ],
)
def test_a_wrong_value_is_refused_by_name_without_being_shown(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(f"OMNISTAGE_{name}", value)
    with pytest.raises(ConfigError, match=f"OMNISTAGE_{name}: "):
        load_settings(ServiceSettings, "codec")


def test_settings_do_not_change() -> None:
    settings = load_settings(ServiceSettings, "codec")
    with pytest.raises(ValueError, match="frozen"):
        settings.namespace = "other"  # type: ignore[misc]


def test_thread_counts_come_too_late_after_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    import types

    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    with pytest.raises(ConfigError, match="before torch"):
        limit_threads(1)


def test_every_pool_of_threads_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import sys

    monkeypatch.delitem(sys.modules, "torch", raising=False)
    for name in thread_environment(1):
        monkeypatch.setenv(name, "")
    limit_threads(2)
    assert {name: os.environ[name] for name in thread_environment(2)} == thread_environment(2)
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
