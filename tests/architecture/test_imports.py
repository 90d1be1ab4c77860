"""Who may import whom: the contracts in pyproject.toml, and what they cannot express."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from omnistage.config import load_models

if TYPE_CHECKING:
    from tests.architecture.conftest import Source

_WIRE = ("shared/src/omnistage/contracts/", "shared/src/omnistage/pipelines/")


def _imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module.partition(".")[0])
    return names


def test_import_contracts_hold(root: Path) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 broken" in done.stdout


def test_the_wire_needs_msgspec_alone(product: list[Source]) -> None:
    allowed = sys.stdlib_module_names | {"msgspec", "omnistage"}
    found = {
        source.where: sorted(_imported(source.tree) - allowed)
        for source in product
        if source.where.startswith(_WIRE) and _imported(source.tree) - allowed
    }
    assert found == {}


def test_schedulers_are_pure(product: list[Source]) -> None:
    policy = [source for source in product if source.path.name in ("scheduler.py", "line.py", "shares.py")]
    assert policy
    allowed = sys.stdlib_module_names - {"socket", "ssl", "subprocess", "multiprocessing"} | {"omnistage"}
    allowed |= {name for source in policy for name in source.path.parts if name.startswith("omnistage_")}
    found = {source.where: sorted(_imported(source.tree) - allowed) for source in policy}
    assert {where: names for where, names in found.items() if names} == {}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("omnistage_gateway.bootstrap", ("torch", "transformers", "onnxruntime", "scipy")),
        ("omnistage_talker.bootstrap", ("torch", "transformers", "fastapi")),
        ("omnistage_codec.bootstrap", ("torch", "transformers", "fastapi")),
        ("omnistage.contracts", ("nats", "redis", "numpy", "pydantic", "torch")),
        ("omnistage.launcher.cli", ("torch", "transformers", "onnxruntime", "fastapi")),
    ],
)
def test_importing_a_part_loads_nothing_it_does_not_need(module: str, heavy: tuple[str, ...]) -> None:
    program = f"import {module}, sys; print(*[name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize("service", ["talker", "codec"])
def test_engines_that_need_no_torch_load_none(service: str) -> None:
    """Its 0.2 GB are not in the memory limits of the minimal system."""
    program = f"""
import asyncio, sys
from omnistage.config import load_models
from omnistage.observability import Metrics
from omnistage_{service}.bootstrap import load

async def main():
    for key, spec in load_models().of_service({service!r}).items():
        loaded = await load(key, spec, Metrics({service!r}, "one"))
        await loaded.engine.warm()
        await loaded.engine.close()
        print(key, "torch" in sys.modules)

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[1::2] == ["False"] * len(load_models().of_service(service))
    assert done.stdout
