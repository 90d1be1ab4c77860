"""Tells fenced blocks of code from the prose around them, as Markdown comes in. Pure.

A block begins with a line of three or more backticks or tildes and ends with a line of at least as many, or with the
text. (CommonMark 0.31, section 4.5; fences may also be indented or quoted at will.)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPENING = re.compile(r"[ \t>]*(`{3,}(?=[^`\n]*\n)|~{3,})[^\n]*\n")
_PERHAPS_OPENING = re.compile(r"[ \t>]*(?:`{0,2}|~{0,2}|`{3,}[^`\n]*|~{3,}[^\n]*)")


@dataclass(frozen=True)
class Prose:
    """Text to be cut into clauses."""

    text: str


@dataclass(frozen=True)
class CodeBlock:
    """A whole block, its fences included."""

    text: str


class BlockFinder:
    """Text in pieces in, prose and blocks out. What comes out does not depend on the pieces, but for cuts in prose."""

    def __init__(self) -> None:
        self._held = ""
        self._line_start = True
        self._closing: re.Pattern[str] | None = None
        self._block: list[str] = []

    def feed(self, piece: str) -> list[Prose | CodeBlock]:
        """What this piece makes certain. Prose is held back only where a fence may be about to begin."""
        self._held += piece
        parts: list[Prose | CodeBlock] = []
        while self._held and (part := self._next()) is not None:
            parts += part
        return parts

    def finish(self) -> list[Prose | CodeBlock]:
        """What is left, when no more text will come."""
        parts = self.feed("\n") if self._held else []  # a fence is known by its whole line
        if self._closing is not None:
            parts.append(CodeBlock("".join(self._block).rstrip("\n")))
        return parts

    def _next(self) -> list[Prose | CodeBlock] | None:
        """Takes one line, or the part of it that is certain; None if nothing is."""
        if self._closing is not None:
            return self._code_line(self._closing)
        opening = _OPENING.match(self._held) if self._line_start else None
        if opening is not None:
            fence = opening.group(1)
            self._closing = re.compile(rf"[ \t>]*{re.escape(fence[0])}{{{len(fence)},}}[ \t\r]*\n")
            self._block = [self._take(opening.end())]
            return []
        if self._line_start and _PERHAPS_OPENING.fullmatch(self._held):
            return None
        end = self._held.find("\n") + 1
        self._line_start = end > 0
        return [Prose(self._take(end or len(self._held)))]

    def _code_line(self, closing: re.Pattern[str]) -> list[Prose | CodeBlock] | None:
        end = self._held.find("\n") + 1
        if not end:
            return None
        line = self._take(end)
        self._block.append(line)
        if not closing.fullmatch(line):
            return []
        block = CodeBlock("".join(self._block).rstrip("\n"))
        self._closing, self._block = None, []
        return [block]

    def _take(self, count: int) -> str:
        taken, self._held = self._held[:count], self._held[count:]
        return taken
