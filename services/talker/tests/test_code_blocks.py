"""Fenced blocks are told from prose, whatever pieces the text comes in."""

from __future__ import annotations

import pytest

from omnistage_talker.engine.code_blocks import BlockFinder, CodeBlock, Prose

BLOCK = "```python\nprint('a. b')\n\nx = 1\n```"
CASES = [
    ("No code at all.", ["No code at all."]),
    (f"See:\n{BLOCK}\nDone.", ["See:", (BLOCK,), "Done."]),
    (BLOCK, [(BLOCK,)]),
    (f"{BLOCK}\n\n{BLOCK}\n", [(BLOCK,), (BLOCK,)]),
    ("~~~\n```\n~~~~\nafter", [("~~~\n```\n~~~~",), "after"]),
    ("````\n```\n````", [("````\n```\n````",)]),
    ("- a\n  ```\n  code\n  ```\n- b", ["- a", ("  ```\n  code\n  ```",), "- b"]),
    ("Cut off:\n```js\nlet a", ["Cut off:", ("```js\nlet a",)]),
    ("```", [("```",)]),
    ("```not a fence``` but inline", ["```not a fence``` but inline"]),
    ("`code` and ``more``\n`", ["`code` and ``more``\n`"]),
    ("in a line ```\nno\n```", ["in a line ```\nno", ("```",)]),
    ("```\nno end ```\n``` x\n", [("```\nno end ```\n``` x",)]),
    ("", []),
]


def parts_of(text: str, size: int) -> list[str | tuple[str]]:
    """Prose joined and stripped, blocks in tuples."""
    finder = BlockFinder()
    found = [part for start in range(0, len(text), size) for part in finder.feed(text[start : start + size])]
    parts: list[str | tuple[str]] = []
    for part in [*found, *finder.finish()]:
        last = parts[-1] if parts else None
        if isinstance(part, CodeBlock):
            parts.append((part.text,))
        elif isinstance(last, str):
            parts[-1] = last + part.text
        else:
            parts.append(part.text)
    return [stripped for part in parts if (stripped := part if isinstance(part, tuple) else part.strip())]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize(("text", "parts"), CASES)
def test_blocks_are_found(text: str, parts: list[str | tuple[str]], size: int) -> None:
    assert parts_of(text, size) == parts


def test_prose_is_not_held_back() -> None:
    finder = BlockFinder()
    assert finder.feed("The answer") == [Prose("The answer")]
    assert finder.feed(" is `") == [Prose(" is `")]
    assert finder.feed("x`.\n") == [Prose("x`.\n")]
    assert finder.feed("`") == []
    assert finder.feed("y` ") == [Prose("`y` ")]
