"""Parity rows for people."""

from __future__ import annotations

from collections.abc import Sequence

from omnistage.parity.comparison import Comparison

_HEADER = ("part", "shape", "largest error", "allowed error", "")


def table_lines(rows: Sequence[Comparison]) -> list[str]:
    """A table of plain lines, and a last line that counts."""
    cells = [_HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADER))]
    lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    missed = sum(not row.passed for row in rows)
    return [*lines, f"{len(rows)} compared, {missed} missed"]


def _cells(row: Comparison) -> tuple[str, str, str, str, str]:
    shape = "x".join(str(size) for size in row.shape) or "scalar"
    return (row.part, shape, f"{row.error:.2g}", f"{row.allowed:.2g}", "ok" if row.passed else "MISSED")
