"""Streams that run dry at their clients, with the engines' deadline-aware order and without it, in one run.

    OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE python benchmarks/deadline_order.py

Two codec engines get the same requests at the same time: one serves whoever runs dry first, the other all in turn.
Their model waits for as long as decoding would take instead of computing, so the engines do not disturb one another,
the load is exact, and the machine hardly matters. In each round `--streams` requests start at random moments of
`--stagger` seconds; playing all of them is `--load` of what an engine can do, and their frames come at three times the
pace of speech, so that the engines are busy until the last one is through. Each client plays from its first samples on,
as the gateway's playback clock counts. Appends to benchmarks/results/deadline_order.csv and prints a table.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import os
import platform
import random
import statistics
import subprocess
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnistage.pacing import Pacer
from omnistage.urgency import Reading
from omnistage_codec.engine import DecodeConfig, DecodeEngine, Frames
from omnistage_codec.models.base import FrameArray, WaveFacts

RESULTS = Path(__file__).parent / "results" / "deadline_order.csv"
COLUMNS = (
    "date",
    "commit",
    "cpu",
    "versions",
    "case",
    "streams_at_once",
    "load",
    "streams",
    "dry_streams",
    "dry_streams_in_turn",
    "underruns",
    "underruns_in_turn",
    "underrun_s",
    "underrun_s_in_turn",
    "first_audio_p95_s",
    "first_audio_p95_s_in_turn",
    "goal",
)
GOAL = "fewer dry streams and fewer seconds dry"
FRAME_RATE_HZ = 80
SAMPLES_PER_FRAME = 30
CHUNK_FRAMES = 16
SUPPLY = 3.0
"""Frames come so many times faster than they sound."""
CASES: tuple[tuple[str, int], ...] = (("all streamed", 0), ("every third in one piece", 3))
"""Name, and which request in so many is taken in one piece."""


class Waiting:
    """Takes a given time for each second of sound."""

    facts = WaveFacts(
        family="waiting",
        layout="waiting-v1",
        frame_width=1,
        frame_dtype="float32",
        frame_rate_hz=FRAME_RATE_HZ,
        sample_rate_hz=FRAME_RATE_HZ * SAMPLES_PER_FRAME,
        samples_per_frame=SAMPLES_PER_FRAME,
        lookahead_frames=0,
    )

    def __init__(self, cost: float) -> None:
        self._cost = cost

    def new_state(self, *, seed: int, voice: str, context: FrameArray | None = None) -> None:
        return None

    def decode(
        self, state: None, frames: FrameArray, *, segment: int, segment_frame: int, segment_end: bool
    ) -> NDArray[np.float32]:
        time.sleep(self._cost * len(frames) / FRAME_RATE_HZ)
        return np.zeros(len(frames) * SAMPLES_PER_FRAME, np.float32)


@dataclass
class Heard:
    """What the clients of one engine heard.

    Attributes:
        underruns: seconds of each.
        first_s: from a request's start to its first sound.
    """

    streams: int = 0
    dry: int = 0
    underruns: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)


async def supply(length_s: float) -> AsyncIterator[Frames]:
    """One segment of this length, at the pace of `SUPPLY`."""
    pacer = Pacer(SUPPLY * FRAME_RATE_HZ)
    total = round(length_s * FRAME_RATE_HZ)
    for start in range(0, total, CHUNK_FRAMES):
        count = min(CHUNK_FRAMES, total - start)
        await pacer.release(count)
        yield Frames(
            frames=np.zeros((count, 1), np.float32),
            segment=0,
            segment_frame=start,
            segment_end=start + count == total,
        )


async def listen(engine: DecodeEngine, heard: Heard, at: float, length_s: float, reading: Reading) -> None:
    """Start a request at a time of the clock and play what comes."""
    await asyncio.sleep(at - time.monotonic())
    dry_at: float | None = None
    underruns: list[float] = []
    async for piece in engine.decode(supply(length_s), seed=0, reading=reading):
        now = time.monotonic()
        if reading != "stream":
            continue
        if dry_at is None:
            heard.first_s.append(now - at)
        elif now > dry_at:
            underruns.append(now - dry_at)
        dry_at = max(dry_at or now, now) + len(piece.samples) / piece.sample_rate_hz
    if reading == "stream":
        heard.streams += 1
        heard.dry += bool(underruns)
        heard.underruns += underruns


@dataclass(frozen=True)
class Round:
    """What happens in a round; see the module."""

    streams: int
    load: float
    stagger_s: float
    length_s: float


async def measure(round_: Round, rounds: int, one_piece: int) -> tuple[Heard, Heard]:
    """What is heard with the order, and in turn."""
    model = Waiting(round_.load / round_.streams)
    engines = [DecodeEngine(model, DecodeConfig(slots=1000, by_deadline=choice)) for choice in (True, False)]
    heard = [Heard(), Heard()]
    noise = random.Random(5)
    for _ in range(rounds):
        begin = time.monotonic() + 0.1
        async with asyncio.TaskGroup() as group:
            for number in range(round_.streams):
                at = begin + noise.uniform(0, round_.stagger_s)
                length_s = round_.length_s * noise.uniform(0.5, 1.5)
                reading: Reading = "whole" if one_piece and number % one_piece == 0 else "stream"
                for engine, ears in zip(engines, heard, strict=True):
                    group.create_task(listen(engine, ears, at, length_s, reading))
    for engine in engines:
        await engine.close()
    return heard[0], heard[1]


def p95(values: list[float]) -> float:
    return statistics.quantiles(values, n=20)[-1]


def row(case: str, round_: Round, ordered: Heard, turns: Heard) -> dict[str, object]:
    """A line of the results."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    values = (
        datetime.now(UTC).date().isoformat(),
        commit.stdout.strip(),
        f"{os.cpu_count()} cores",
        f"python {platform.python_version()}",
        case,
        round_.streams,
        round_.load,
        ordered.streams,
        ordered.dry,
        turns.dry,
        len(ordered.underruns),
        len(turns.underruns),
        round(sum(ordered.underruns), 2),
        round(sum(turns.underruns), 2),
        round(p95(ordered.first_s), 3),
        round(p95(turns.first_s), 3),
        GOAL,
    )
    return dict(zip(COLUMNS, values, strict=True))


def main() -> None:
    """Measure, print, append."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=12, help="that play at once")
    parser.add_argument("--load", type=float, default=0.9, help="share of what an engine can do")
    parser.add_argument("--stagger", type=float, default=6.0, help="seconds within which they start")
    parser.add_argument("--length", type=float, default=12.0, help="of each answer, in seconds, more or less by half")
    parser.add_argument("--rounds", type=int, default=4, help="of each case")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    round_ = Round(options.streams, options.load, options.stagger, options.length)
    rows = []
    for case, one_piece in CASES:
        ordered, turns = asyncio.run(measure(round_, options.rounds, one_piece))
        rows.append(row(case, round_, ordered, turns))
    for line in rows:
        print("\n".join(f"{name:28}{value}" for name, value in line.items()) + "\n")
    if options.no_save:
        return
    new = not RESULTS.exists()
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
