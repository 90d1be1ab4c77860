"""`omnistage status`: a table of everything that runs."""

from __future__ import annotations

from typing import Any, Literal

from rich.table import Table
from rich.text import Text

from omnistage.launcher.display import STYLES

PLAIN_WIDTH = 120
"""Columns of the table where no terminal says how many there are."""

_COLUMNS = ("service", "instance", "pid", "version", "state", "models", "slots", "queue", "in flight", "restarts", "up")
_NUMBERS = {"pid", "slots", "queue", "restarts", "up"}
_MAY_WRAP = {"models", "in flight"}


def status_table(status: dict[str, Any]) -> Table:
    """The answer of the control operation `status` as a table: one row for each process."""
    word = "ready" if status["ready"] else "starting"
    table = Table(title=f"{status['address']}  {word}", title_justify="left", box=None, pad_edge=False)
    for column in _COLUMNS:
        justify: Literal["right", "left"] = "right" if column in _NUMBERS else "left"
        table.add_column(column, justify=justify, no_wrap=column not in _MAY_WRAP, overflow="fold")
    for process in status["processes"]:
        table.add_row(*_row(process))
    return table


def _row(process: dict[str, Any]) -> list[Text | str]:
    state = process["state"]
    engines = ", ".join(engine["engine"] for engine in process["engines"]) or "-"
    return [
        process["service"],
        process["instance"] or process["name"],
        str(process["pid"] or "-"),
        process["version"] or "-",
        Text(state, STYLES.get(state, "")),
        process["detail"] or engines,
        str(process["slots"]) if process["engines"] else "-",
        str(process["queue"]) if process["engines"] else "-",
        _in_flight(process["running"]),
        str(process["restarts"]),
        _duration(process["uptime_s"]),
    ]


def _in_flight(ids: list[str]) -> str:
    """Their number, and the first few by name."""
    if not ids:
        return "0"
    shown = ", ".join(ids[:2])
    return f"{len(ids)}: {shown}" + (", ..." if len(ids) > 2 else "")


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
