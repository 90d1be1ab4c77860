"""`omnistage status`: everything that runs, as a table for terminals and as plain lines."""

from __future__ import annotations

from typing import Any, Literal, get_args

from rich.table import Table
from rich.text import Text

from omnistage.config.models_file import ServiceName
from omnistage.launcher.display import STYLES
from omnistage.pipelines import GATEWAY

_ORDER = ("nats", "tensors", GATEWAY, *get_args(ServiceName))
"""The servers, then the services as a request meets them."""

_LISTED = 3
_COLUMNS = ("service", "instance", "pid", "version", "state", "models", "slots", "queue", "in flight", "restarts", "up")
_NUMBERS = {"pid", "slots", "queue", "restarts", "up"}
_MAY_WRAP = {"models", "in flight"}


def status_table(status: dict[str, Any]) -> Table:
    """The answer of the control operation `status` as a table: one row for each process."""
    table = Table(title=f"{status['address']}  {_word(status)}", title_justify="left", box=None, pad_edge=False)
    for column in _COLUMNS:
        justify: Literal["right", "left"] = "right" if column in _NUMBERS else "left"
        table.add_column(column, justify=justify, no_wrap=column not in _MAY_WRAP, overflow="fold")
    for process in sorted(status["processes"], key=_place):
        state = process["state"]
        row = [Text(cell, STYLES.get(state, "")) if cell is state else cell for cell in _row(process)]
        table.add_row(*row)
    return table


def status_lines(status: dict[str, Any]) -> list[str]:
    """The same without a terminal: the address, the names of the columns, and a line for each process."""
    rows = [list(_COLUMNS), *(_row(process) for process in sorted(status["processes"], key=_place))]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [f"{status['address']}  {_word(status)}", *lines]


def _word(status: dict[str, Any]) -> str:
    return "ready" if status["ready"] else "starting"


def _place(process: dict[str, Any]) -> tuple[int, str, int]:
    """Where a process stands: services in the order of pipelines, instances of one by their number."""
    service, number = process["service"], process["name"].rpartition("-")[2]
    return (
        _ORDER.index(service) if service in _ORDER else len(_ORDER),
        service,
        int(number) if number.isdecimal() else 0,
    )


def _row(process: dict[str, Any]) -> list[str]:
    state: str = process["state"]
    engines = _few([engine["engine"] for engine in process["engines"]]) or "-"
    return [
        process["service"],
        process["instance"] or process["name"],
        str(process["pid"] or "-"),
        process["version"] or "-",
        state,
        " ".join(process["detail"].split()) or engines,
        str(process["slots"]) if process["engines"] else "-",
        str(process["queue"]) if process["engines"] else "-",
        _in_flight(process["running"]),
        str(process["restarts"]),
        _duration(process["uptime_s"]),
    ]


def _in_flight(ids: list[str]) -> str:
    """Their number, and the first few by name."""
    return f"{len(ids)}: {_few(ids)}" if ids else "0"


def _few(names: list[str]) -> str:
    more = f" +{len(names) - _LISTED}" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min"
    return f"{seconds // 3600:.0f} h {seconds % 3600 // 60:.0f} min"
