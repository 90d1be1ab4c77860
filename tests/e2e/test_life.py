"""Starting and stopping, as a person does it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from tests.support.system import running_system

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["INT", "TERM"])
def test_a_signal_stops_everything_and_leaves_the_data_folder_alone(tmp_path: Path, number: signal.Signals) -> None:
    with running_system(tmp_path) as system:
        children = psutil.Process(system.process.pid).children(recursive=True)
        assert len(children) >= 6
        arena = Path(system.state.arena)
        assert arena.exists()
        system.client().audio.speech.create(model="tts-1", voice="alloy", input="Good bye.")
        began = time.monotonic()
        system.process.send_signal(number)
        assert system.process.wait(20) == 0
        took = time.monotonic() - began
    gone, alive = psutil.wait_procs(children, timeout=1)
    assert not alive
    assert len(gone) == len(children)
    assert took <= 5 * slack()
    assert not arena.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"data", "up.log", "traces.jsonl"}


def slack() -> float:
    """More than one where the cores are busy with other things: the promise is about an idle machine."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def test_a_used_port_is_said_in_one_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-m", "omnistage.launcher", "up", "--port", str(port), "--data", str(tmp_path / "d")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 1
    said = (result.stdout + result.stderr).strip().splitlines()
    assert len(said) == 1
    assert str(port) in said[0]
