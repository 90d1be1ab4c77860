"""What the system costs over its engines: time to first audio and throughput, against the same engines in one process.

    python -m benchmarks.system_overhead

The system is started as a user starts it (one instance of each stage, HTTP, the official wire shapes, PCM); the
yardstick calls the same talker and codec engines, with the same settings, from one event loop. Both sides take turns
within each round, so that whatever else the machine does meets both alike. Ratios count; absolute times are shown for
orientation. Writes benchmarks/results/system_overhead.csv (appended) and prints a table.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

os.environ.update({"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"})

import uvloop

from omnistage.config import load_models
from omnistage.config.threads import ALLOCATOR
from omnistage.contracts import SpeechOptions
from omnistage.launcher.folder import DataFolder
from omnistage.launcher.state import read_state
from omnistage.observability import Metrics
from omnistage_codec import bootstrap as codec
from omnistage_codec.engine import CodecEngine, DecodeEngine, Frames
from omnistage_talker import bootstrap as talker
from omnistage_talker.engine import SpeechEngine

RESULTS = Path(__file__).parent / "results" / "system_overhead.csv"
COLUMNS = ("date", "commit", "cpu", "versions", "case", "system", "engines", "unit", "difference_or_ratio", "goal")
SENTENCE = "The weather is nice today, and we will go for a walk along the river."
TEXT = " ".join([SENTENCE, "The teacher asked the students to read the book.", "It was a long journey."] * 3)
RATE_HZ = 24_000


@dataclass(frozen=True)
class Run:
    """One request: seconds to the first samples, seconds in all, seconds of sound."""

    first_s: float
    total_s: float
    sound_s: float


Speak = Callable[[str], Awaitable[Run]]


class Engines:
    """The engines alone."""

    def __init__(self, speech: SpeechEngine, decode: DecodeEngine) -> None:
        self._speech = speech
        self._decode = decode

    @classmethod
    async def load(cls) -> Engines:
        specs = load_models().engines
        metrics = Metrics("talker", "benchmark")
        speech = (await talker.load("heart", specs["heart"], metrics)).engine
        decode = (await codec.load("heart-wave", specs["heart-wave"], metrics)).engine
        assert isinstance(speech, SpeechEngine)
        assert isinstance(decode, CodecEngine)
        await speech.warm()
        await decode.warm()
        return cls(speech, decode.decoder)

    async def speak(self, text: str) -> Run:
        began, first, samples = time.perf_counter(), 0.0, 0
        frames = self._frames(text)
        async with aclosing(self._decode.decode(frames, seed=1)) as pieces:
            async for piece in pieces:
                first = first or time.perf_counter() - began
                samples += len(piece.samples)
        return Run(first, time.perf_counter() - began, samples / RATE_HZ)

    async def _frames(self, text: str) -> AsyncIterator[Frames]:
        async def pieces() -> AsyncIterator[str]:
            yield text

        async with aclosing(self._speech.speak(pieces(), SpeechOptions(voice="heart", seed=1))) as spoken:
            async for chunk in spoken:
                yield Frames(
                    frames=chunk.frames,
                    segment=chunk.segment,
                    segment_frame=chunk.segment_frame,
                    segment_end=chunk.segment_end,
                    text=chunk.text,
                )


class OverHttp:
    """The whole system, asked by a client that does the least it can: it runs on the same cores."""

    def __init__(self, address: str) -> None:
        self._host, self._port = address.removeprefix("http://").rsplit(":", 1)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def speak(self, text: str) -> Run:
        body = {"model": "tts-1", "voice": "alloy", "input": text, "response_format": "pcm", "seed": 1}
        data = json.dumps(body).encode()
        began, first, received = time.perf_counter(), 0.0, 0
        connection = self._idle.pop() if self._idle else await asyncio.open_connection(self._host, int(self._port))
        reader, writer = connection
        head = f"POST /v1/audio/speech HTTP/1.1\r\nhost: {self._host}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        assert b"transfer-encoding: chunked" in answer.lower(), answer
        # RFC 9112, section 7.1: size in hexadecimal, data, and an empty chunk at the end.
        while size := int(await reader.readuntil(b"\r\n"), 16):
            first = first or time.perf_counter() - began
            await reader.readexactly(size + 2)
            received += size
        await reader.readexactly(2)
        self._idle.append(connection)
        return Run(first, time.perf_counter() - began, received / 2 / RATE_HZ)

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


@contextmanager
def system() -> Iterator[str]:
    """A system of its own, started and stopped; its address."""
    with tempfile.TemporaryDirectory() as folder:
        launcher = [sys.executable, "-m", "omnistage.launcher"]
        data = ["--data", f"{folder}/data"]
        subprocess.run([*launcher, "up", "--port", "0", "--detach", "--quiet", *data], check=True)
        try:
            yield read_state(DataFolder(Path(folder) / "data")).address
        finally:
            subprocess.run([*launcher, "down", *data], check=True, stdout=subprocess.DEVNULL)


async def throughput(speak: Speak, streams: int, turns: int) -> float:
    """Seconds of sound per second with so many clients that each ask again as soon as they are answered.

    The more turns, the less weigh the first and the last, when stages wait for work.
    """

    async def client() -> float:
        return sum([(await speak(TEXT)).sound_s for _ in range(turns)])

    began = time.perf_counter()
    sounds = await asyncio.gather(*(client() for _ in range(streams)))
    return sum(sounds) / (time.perf_counter() - began)


async def measure(
    address: str, rounds: int, streams: int, turns: int
) -> list[tuple[str, float, float, str, float, str]]:
    engines = await Engines.load()
    with closing(OverHttp(address)) as over_http:
        for _ in range(5):
            await over_http.speak(SENTENCE)
            await engines.speak(SENTENCE)
        first: dict[str, list[float]] = {"system": [], "engines": []}
        rate: dict[str, list[float]] = {"system": [], "engines": []}
        for number in range(rounds):
            for name, speak in _in_turn(number, over_http.speak, engines.speak):
                first[name].append((await speak(SENTENCE)).first_s)
        for number in range(max(3, rounds // 12)):
            for name, speak in _in_turn(number, over_http.speak, engines.speak):
                rate[name].append(await throughput(speak, streams, turns))
    ours_ms, theirs_ms = (statistics.median(first[name]) * 1000 for name in ("system", "engines"))
    ours, theirs = (statistics.median(rate[name]) for name in ("system", "engines"))
    return [
        ("time to first audio, 1 stream", ours_ms, theirs_ms, "ms", ours_ms - theirs_ms, "at most 15 ms more"),
        (f"throughput, {streams} streams", ours, theirs, "s of sound per s", ours / theirs, "at least 0.85"),
    ]


def _in_turn(number: int, one: Speak, other: Speak) -> list[tuple[str, Speak]]:
    pair = [("system", one), ("engines", other)]
    return pair if number % 2 else pair[::-1]


def write(rows: list[tuple[str, float, float, str, float, str]]) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    versions = f"python {platform.python_version()}, onnxruntime {version('onnxruntime')}"
    fixed = (datetime.now(UTC).date().isoformat(), commit.stdout.strip(), f"{os.cpu_count()} cores", versions)
    fresh = not RESULTS.exists()
    with RESULTS.open("a", newline="") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(COLUMNS)
        for case, ours, theirs, unit, figure, goal in rows:
            writer.writerow((*fixed, case, f"{ours:.2f}", f"{theirs:.2f}", unit, f"{figure:.3f}", goal))
            print(f"{case:32} system {ours:8.2f}  engines {theirs:8.2f} {unit:18} {figure:8.3f}  goal: {goal}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--streams", type=int, default=8, help="clients at once in throughput runs")
    parser.add_argument("--turns", type=int, default=12, help="requests of each client of a throughput run")
    options = parser.parse_args()
    if any(os.environ.get(name) != value for name, value in ALLOCATOR.items()):
        # Read at a process's start only; both sides are to run with the same allocator.
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **ALLOCATOR})
    with system() as address:
        write(uvloop.run(measure(address, options.rounds, options.streams, options.turns)))


if __name__ == "__main__":
    main()
