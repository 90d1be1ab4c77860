"""YAML files that people write: read as UTF-8, a key that stands twice refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from omnistage.errors import ConfigError


class _Twice(yaml.YAMLError):
    """A key stands twice in one mapping."""


class _UniqueKeys(yaml.SafeLoader):
    """YAML forbids equal keys in one mapping; the library takes the last one without a word."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Looked at before merge keys (<<) are resolved: these may well bring what the mapping itself overrides.
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, Any]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (key.tag, key.value) in seen:
                raise _Twice(f"line {key.start_mark.line + 1}: the key {key.value!r} stands twice in one mapping")
            seen.add((key.tag, str(key.value)))
        return node


def read_mapping(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        ConfigError: the file cannot be read, is not UTF-8 or not YAML, holds something else, or a key stands twice;
            one line that names the file.
    """
    try:
        content = _parsed(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not UTF-8 at byte {error.start}") from error
    except _Twice as error:
        raise ConfigError(f"{path}: {error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: a mapping was expected")
    return content


def _parsed(text: str) -> Any:
    loader = _UniqueKeys(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
