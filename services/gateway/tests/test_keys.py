"""Keys from the environment: a wrong list never opens the door by accident."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from omnistage.errors import ConfigError
from omnistage_gateway.settings import Settings


def test_keys_of_both_sources_are_named(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nlab = k3\n\n", encoding="utf-8")
    settings = Settings(api_keys=SecretStr("a=k1, b=k2"), api_keys_file=file)
    assert settings.keys() == {"a": "k1", "b": "k2", "lab": "k3"}


@pytest.mark.parametrize("keys", [",", " ", " , ,"])
def test_a_list_without_a_key_is_refused(keys: str) -> None:
    with pytest.raises(ConfigError, match="names no key"):
        Settings(api_keys=SecretStr(keys)).keys()


def test_a_file_without_a_key_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# none yet\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="names no key"):
        Settings(api_keys_file=file).keys()


def test_everybody_may_enter_where_no_key_is_asked_for() -> None:
    assert Settings().keys() == {}
    assert Settings(api_keys=SecretStr("")).keys() == {}
