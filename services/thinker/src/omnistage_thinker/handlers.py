"""All that the thinker answers."""

from __future__ import annotations

from omnistage.contracts import GenerateText, SpeakText, TextChunk, TextDelta, TextDone
from omnistage.observability import names
from omnistage.runtime.context import RequestContext
from omnistage.runtime.worker import Handlers
from omnistage_thinker.engine import TextEngine


async def generate_text(context: RequestContext[TextEngine], work: GenerateText) -> None:
    """Answer a conversation; with speech asked for, pass the text on as it is written.

    The client's log is written before the talker's, so that after a crash the talker's is never ahead: what it lacks
    is in the client's log.
    """
    speech = _Speech(context, work)
    text_out = context.output("gateway")
    earlier = [record for record in text_out.earlier if isinstance(record, TextDelta)]
    await speech.pass_on("".join(delta.text for delta in earlier))
    if not any(isinstance(record, TextDone) for record in text_out.earlier):
        emitted = tuple(token for delta in earlier for token in delta.token_ids)
        sent = sum(len(delta.text) for delta in earlier)
        reading = context.meta.reading
        async with context.engine.generate(work, emitted=emitted, emitted_chars=sent, reading=reading) as answer:
            async for piece in answer:
                await text_out.send(TextDelta, text=piece.text, token_ids=piece.token_ids, logprobs=piece.logprobs)
                await speech.pass_on(piece.text)
        done = answer.summary
        context.metrics.add(names.TOKENS, done.prompt_tokens, model=context.engine_key, kind="prompt")
        context.metrics.add(names.TOKENS, done.cached_tokens, model=context.engine_key, kind="cached")
        context.metrics.add(names.TOKENS, done.completion_tokens, model=context.engine_key, kind="completion")
        await text_out.send(
            TextDone,
            finish_reason=done.finish_reason,
            prompt_tokens=done.prompt_tokens,
            completion_tokens=done.completion_tokens,
            cached_tokens=done.cached_tokens,
        )
    await speech.finish()
    await text_out.finish()


class _Speech:
    """The edge to the talker, if the request has one."""

    def __init__(self, context: RequestContext[TextEngine], work: GenerateText) -> None:
        self._context = context
        self._work = work
        self._edge = context.output("talker") if context.has("talker") else None
        self._already = 0
        if self._edge is not None:
            self._already = sum(len(record.text) for record in self._edge.earlier if isinstance(record, TextChunk))

    async def pass_on(self, text: str) -> None:
        """Send what an earlier holder has not sent yet, and see to it that the talker starts."""
        if self._edge is None:
            return
        known = min(self._already, len(text))
        self._already -= known
        if known < len(text):
            await self._start()
            await self._edge.send(TextChunk, text=text[known:])

    async def finish(self) -> None:
        if self._edge is not None:
            await self._start()
            await self._edge.finish()

    async def _start(self) -> None:
        assert self._work.speech is not None
        await self._context.start(SpeakText(**self._context.onward("talker"), speech=self._work.speech))


HANDLERS: Handlers = {GenerateText: generate_text}
