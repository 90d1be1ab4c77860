"""The demonstration's ear: what it measures and writes."""

from __future__ import annotations

import time
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest

from omnistage.launcher.demonstration import listen_to
from omnistage.launcher.faults import LauncherError


def test_first_audio_is_the_first_that_holds_any(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b""
        time.sleep(0.05)
        yield b"\1\0" * 12_000
        time.sleep(0.05)
        yield b"\2\0" * 12_000

    heard = listen_to(chunks())
    assert 0.05 <= heard.first_s <= heard.total_s - 0.05
    assert heard.summary().startswith("1.00 s of audio, first audio after ")
    heard.write(tmp_path / "f.wav")
    with wave.open(str(tmp_path / "f.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (24_000, 1, 2)
        assert file.readframes(24_000) == b"\1\0" * 12_000 + b"\2\0" * 12_000


def test_silence_is_a_failure() -> None:
    with pytest.raises(LauncherError, match="no audio came back"):
        listen_to(iter([b"", b""]))
