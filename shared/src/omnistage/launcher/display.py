"""What `up` shows while the system starts: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

STYLES = {
    "ready": "green",
    "running": "green",
    "starting": "yellow",
    "waiting": "yellow",
    "draining": "yellow",
    "stopping": "yellow",
    "failed": "bold red",
}


class Display(Protocol):
    """Takes reports of all processes, again and again, and single lines."""

    def update(self, reports: Sequence[dict[str, Any]]) -> None: ...

    def line(self, text: str) -> None: ...

    def close(self) -> None:
        """The start is over, one way or the other."""
        ...


class TableDisplay:
    """A table that is drawn anew in place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._since = time.monotonic()
        # Drawn by `update` alone: a refresh thread would outlive forks and steal time from the services that load.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def update(self, reports: Sequence[dict[str, Any]]) -> None:
        table = Table(
            box=None, pad_edge=False, title=f"starting, {time.monotonic() - self._since:.0f} s", title_justify="left"
        )
        for column in ("process", "state", "what it is doing"):
            table.add_column(column)
        for report in reports:
            state = report["state"]
            table.add_row(report["name"], Text(state, STYLES.get(state, "")), report["detail"])
        self._live.update(table, refresh=True)

    def line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        self._live.stop()


class LineDisplay:
    """A line for each change."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console = console
        self._quiet = quiet
        self._shown: dict[str, tuple[str, str]] = {}

    def update(self, reports: Sequence[dict[str, Any]]) -> None:
        for report in reports:
            now = (report["state"], report["detail"])
            if self._shown.get(report["name"]) != now and not self._quiet:
                self._shown[report["name"]] = now
                tail = f" ({report['detail']})" if report["detail"] and report["detail"] != report["state"] else ""
                self.line(f"{report['name']}: {report['state']}{tail}")

    def line(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None: ...


def display_for(console: Console, *, quiet: bool) -> Display:
    return TableDisplay(console) if console.is_terminal and not quiet else LineDisplay(console, quiet=quiet)
