"""What kills cost: a table for people and rows for a file."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterable
from pathlib import Path

from tests.chaos.kills import STAGES, Chaos, Kill
from tests.support.streams import Played

HEARD_WITHIN_S = 10.0
"""Silence is laid to a kill's charge for this long."""

COLUMNS = ("number", "how", "stage", "chunks_sent", "taken_over_s", "went_on_s", "next_audio_s", "silence_s", "outcome")


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least this share of the values do not exceed; nan without values."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def rows(chaos: Chaos) -> list[dict[str, object]]:
    """One for each request that was hit."""
    streams = {played.request_id: played for played in chaos.finished}
    return [
        {
            "number": number,
            "how": kill.how,
            "stage": kill.stage,
            "chunks_sent": hit.chunks,
            "taken_over_s": _rounded(hit.taken_over_s),
            "went_on_s": _rounded(hit.went_on_s),
            "next_audio_s": _rounded(streams[hit.request_id].next_audio_s(kill.at)),
            "silence_s": _rounded(_silence_s(streams[hit.request_id], kill, chaos.kills[number + 1 :])),
            "outcome": _outcome(chaos, streams[hit.request_id]),
        }
        for number, kill in enumerate(chaos.kills)
        for hit in kill.hits
    ]


def summary(chaos: Chaos) -> str:
    """Percentiles by stage and kind of fault, in seconds."""
    lines = [
        f"{'fault':13} {'times':>5} {'hits':>5}   {'taken over':25} {'went on':25} {'next sound':25} {'silence':25}",
    ]
    table = rows(chaos)
    for how, stage in itertools.product(("kill", "hang"), STAGES):
        own = [row for row in table if (row["how"], row["stage"]) == (how, stage)]
        times = sum((kill.how, kill.stage) == (how, stage) for kill in chaos.kills)
        columns = (_percentiles(own, key) for key in ("taken_over_s", "went_on_s", "next_audio_s", "silence_s"))
        lines.append(f"{how} {stage:8} {times:5} {len(own):5}   {' '.join(columns)}")
    complete = sum(played.complete for played in chaos.finished)
    return "\n".join([*lines, f"p50 / p99 / max; {complete} of {len(chaos.finished)} streams complete"])


def _percentiles(table: list[dict[str, object]], key: str) -> str:
    values = [float(str(row[key])) for row in table if row[key] is not None]
    return " / ".join(f"{percentile(values, share):5.2f} s" for share in (0.5, 0.99, 1.0)).ljust(25)


def write(chaos: Chaos, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows(chaos))


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)


def _silence_s(played: Played, kill: Kill, later: list[Kill]) -> float:
    following = next((other.at for other in later), math.inf)
    return played.silence_s(kill.at, min(kill.at + HEARD_WITHIN_S, following))


def _outcome(chaos: Chaos, played: Played) -> str:
    if not played.complete:
        return "failed"
    return "same" if played.content == chaos.references[played.ask] else "other"
