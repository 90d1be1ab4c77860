"""Who may open connections outwards: the loader of URLs, the download of checkpoints that the models file names, the
launcher's calls to its own gateway, and no one else."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.architecture.conftest import Source

_CLIENTS = frozenset(
    {
        "httpx", "httpx2", "httpcore", "httpcore2", "h11", "aiohttp", "requests", "urllib3", "urllib.request",
        "http.client", "pycurl", "ftplib", "smtplib", "xmlrpc", "websockets", "huggingface_hub",
    }
)  # fmt: skip
"""Modules that open connections to where an address says."""

_CALLS = frozenset({"open_connection", "create_connection", "urlopen", "urlretrieve"})

_MAY = (
    "services/gateway/src/omnistage_gateway/fetching/",
    "shared/src/omnistage/config/hub.py",
    "shared/src/omnistage/launcher/",
)
_NEVER_SERVED = ("shared/src/omnistage/testing/",)
"""Waits for the servers of tests; no process of a running system loads it."""


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module:
        return {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return set()


def outbound(tree: ast.AST) -> list[int]:
    """Lines that bring in a client or open a connection."""
    found = []
    for node in ast.walk(tree):
        heads = {".".join(name.split(".")[:depth]) for name in _names(node) for depth in (1, 2)}
        called = node.func.attr if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) else ""
        if heads & _CLIENTS or called in _CALLS:
            found.append(getattr(node, "lineno", 0))
    return found


def test_nothing_but_the_loader_talks_outwards(product: list[Source]) -> None:
    found = [
        f"{source.where}:{line}"
        for source in product
        if not source.where.startswith((*_MAY, *_NEVER_SERVED))
        for line in outbound(source.tree)
    ]
    assert found == []


def test_the_loader_is_where_this_test_thinks_it_is(product: list[Source]) -> None:
    for place in _MAY:
        assert any(outbound(source.tree) for source in product if source.where.startswith(place)), place


@pytest.mark.parametrize(
    "line",
    [
        "import httpx",
        "from httpx import AsyncClient",
        "import urllib.request",
        "from urllib import request",
        "from urllib.request import urlopen",
        "import http.client",
        "await asyncio.open_connection(host, 80)",
        "socket.create_connection((host, 80))",
    ],
)
def test_the_rule_sees_it(line: str) -> None:
    assert outbound(ast.parse(line)) == [1]


@pytest.mark.parametrize("line", ["from urllib.parse import urlsplit", "import http", "from starlette import requests"])
def test_the_rule_lets_it_pass(line: str) -> None:
    assert outbound(ast.parse(line)) == []
