"""Small files, small functions."""

from __future__ import annotations

import ast
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.architecture.conftest import Source

MAX_FILE_LINES = 500
AIM_FILE_LINES = 300
MAX_FUNCTION_LINES = 60
MEDIAN_FILE_LINES = 140


def _lines(source: Source) -> int:
    return source.text.count("\n")


def test_no_file_is_too_long(sources: list[Source]) -> None:
    found = {source.where: _lines(source) for source in sources if _lines(source) > MAX_FILE_LINES}
    assert found == {}, f"at most {MAX_FILE_LINES} lines"


def test_few_files_are_long(product: list[Source]) -> None:
    """A file above the aim is allowed where it holds one concept; that must stay the exception."""
    found = {source.where: _lines(source) for source in product if _lines(source) > AIM_FILE_LINES}
    assert len(found) <= len(product) // 20, f"over {AIM_FILE_LINES} lines: {found}"


def test_the_usual_file_is_short(product: list[Source]) -> None:
    assert statistics.median(_lines(source) for source in product) <= MEDIAN_FILE_LINES


def test_no_function_is_too_long(sources: list[Source]) -> None:
    found = [
        f"{source.where}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1}"
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert found == [], f"at most {MAX_FUNCTION_LINES} lines"
