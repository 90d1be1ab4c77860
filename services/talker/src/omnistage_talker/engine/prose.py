"""What of a text that a model has written is read aloud, in pieces as it arrives."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterator

from omnistage_talker.engine.clauses import ClauseSplitter
from omnistage_talker.engine.code_blocks import BlockFinder, CodeBlock, Prose
from omnistage_talker.models.markdown import strip_markdown


async def prose_of(pieces: AsyncIterator[str]) -> AsyncGenerator[str, None]:
    """The text clause by clause without marks of Markdown; of a block of code only that it is one."""
    blocks, splitter = BlockFinder(), ClauseSplitter()
    async for piece in pieces:
        for said in _said(blocks.feed(piece), splitter):
            yield said
    for said in _said(blocks.finish(), splitter):
        yield said
    for clause in splitter.finish():
        if said := strip_markdown(clause.text):
            yield f" {said}"


def _said(parts: list[Prose | CodeBlock], splitter: ClauseSplitter) -> Iterator[str]:
    for part in parts:
        code = isinstance(part, CodeBlock)
        texts = [clause.text for clause in (splitter.finish() if code else splitter.feed(part.text))]
        if code:
            texts.append(part.text)
        for text in texts:
            if said := strip_markdown(text):
                yield f" {said}"
