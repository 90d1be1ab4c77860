"""Takes the marks of Markdown out of a clause, leaving what a person would read aloud. Pure."""

from __future__ import annotations

import re

_IMAGE_OR_LINK = re.compile(r"!?\[([^\]\n]*)\]\([^)\n]*\)")
_BARE_LINK = re.compile(r"<(https?://[^>\s]+)>")
_CODE_BLOCK = re.compile(r"[ \t>]*(?:`{3,}[^`\n]*|~{3,}[^\n]*)\n.*", re.DOTALL)
_CODE_BLOCK_SAID = "Code block."
_FENCE = re.compile(r"^[ \t]*(?:`{3,}[^`\n]*|~{3,}[^\n]*)$", re.MULTILINE)
_RULE = re.compile(r"^[ \t]*(?:[-*_=][ \t]*){3,}$", re.MULTILINE)
_TABLE_RULE = re.compile(r"^[ \t]*\|?[ \t:|-]*-[ \t:|-]*\|[ \t:|-]*$", re.MULTILINE)
_LINE_START = re.compile(r"^[ \t]*(?:(?:#{1,6}|[-*+]|>+|\[[ xX]\])[ \t]+)+", re.MULTILINE)
_CELL_EDGE = re.compile(r"^[ \t]*\||\|[ \t]*$", re.MULTILINE)
_EMPHASIS = re.compile(r"\*\*+|__+|~~+|`+|(?<![\s*])\*|\*(?![\s*])|(?<!\w)_(?=\w)|(?<=\w)_(?!\w)")


def strip_markdown(clause: str) -> str:
    """The clause without headings, bullets, quotes, fences, rules, table edges, emphasis and targets of links.

    Code is not read aloud: of a clause that is a fenced block, only that it is one.
    """
    if _CODE_BLOCK.fullmatch(clause):
        return _CODE_BLOCK_SAID
    text = _IMAGE_OR_LINK.sub(r"\1", clause)
    text = _BARE_LINK.sub(r"\1", text)
    for marks in (_FENCE, _RULE, _TABLE_RULE, _LINE_START, _CELL_EDGE, _EMPHASIS):
        text = marks.sub("", text)
    return text.strip()
