"""Each process has its share of the cores before a numeric library is loaded, and the gateway loads no engine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnistage.testing.servers import free_port, running_nats

WATCHED = ("torch", "numpy", "onnxruntime", "scipy", "transformers")
THREADS = "3"

_WATCHER = f"""
import json, os, sys

class Watcher:
    seen = {{}}

    def find_spec(self, name, path=None, target=None):
        if name in {WATCHED!r} and name not in self.seen:
            self.seen[name] = {{key: os.environ.get(key) for key in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY")}}
            with open(os.environ["WATCH_FILE"], "a") as file:
                file.write(json.dumps({{name: self.seen[name]}}) + "\\n")
        return None

sys.meta_path.insert(0, Watcher())
"""


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    """A folder whose sitecustomize notes what the thread settings are when a numeric library is first asked for."""
    (tmp_path / "sitecustomize.py").write_text(_WATCHER, encoding="utf-8")
    return tmp_path


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False


@pytest.fixture
def broker() -> Iterator[str]:
    with running_nats() as server:
        yield server.url


def _run(service: str, folder: Path, bus_url: str, models: Path, *, check: str) -> dict[str, dict[str, str | None]]:
    """Run a service until it answers, stop it, return what the watcher noted."""
    port = free_port()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("OMP_", "OMNISTAGE_"))}
    environment |= {
        "PYTHONPATH": str(folder),
        "WATCH_FILE": str(folder / "seen.jsonl"),
        "OMNISTAGE_BUS_URL": bus_url,
        "OMNISTAGE_ARENA_DIR": str(folder),
        "OMNISTAGE_ARENA_MB": "4",
        "OMNISTAGE_MODELS": str(models),
        "OMNISTAGE_METRICS_PORT": str(port),
        "OMNISTAGE_THREADS": THREADS,
    }
    if service == "gateway":
        environment["OMNISTAGE_PORT"] = str(free_port())
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", f"omnistage_{service}"], env=environment, stderr=log, cwd=folder
        )
        try:
            deadline = time.monotonic() + 100
            while not _answers(f"http://127.0.0.1:{port}{check}"):
                assert process.poll() is None, (folder / "log").read_text(encoding="utf-8")
                assert time.monotonic() < deadline, (folder / "log").read_text(encoding="utf-8")
                time.sleep(0.2)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)
    seen: dict[str, dict[str, str | None]] = {}
    for line in (folder / "seen.jsonl").read_text(encoding="utf-8").splitlines():
        seen |= json.loads(line)
    return seen


@pytest.mark.model
@pytest.mark.integration
@pytest.mark.parametrize(
    ("service", "needed"), [("thinker", {"torch", "numpy"}), ("talker", {"onnxruntime", "numpy"}), ("codec", {"numpy"})]
)
def test_threads_are_limited_before_a_numeric_library_is_loaded(
    service: str, needed: set[str], watched: Path, broker: str, root: Path
) -> None:
    seen = _run(service, watched, broker, root / "deploy" / "models.yaml", check="/ready")
    assert needed <= set(seen)
    assert {name: noted for name, noted in seen.items() if noted["OMP_NUM_THREADS"] != THREADS} == {}
    assert {name: noted for name, noted in seen.items() if noted["OMP_WAIT_POLICY"] != "PASSIVE"} == {}


@pytest.mark.integration
def test_the_gateway_loads_no_engine(watched: Path, broker: str, root: Path) -> None:
    seen = _run("gateway", watched, broker, root / "deploy" / "models.yaml", check="/health")
    assert set(seen) & {"torch", "transformers", "onnxruntime", "scipy"} == set()
