"""The `torch` engine: conversations in, text out, on the shared AR core."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from omnistage.ar.blocks import BlockManager
from omnistage.ar.counters import StepReport
from omnistage.ar.engine import AREngine
from omnistage.ar.request import ARRequest
from omnistage.ar.sampling import SamplingParams
from omnistage.ar.scheduler import Scheduler, SchedulerConfig
from omnistage.ar.stream import StepOutput
from omnistage.contracts import FinishReason, GenerateText, Sampling, TokenLogprob
from omnistage.errors import ConfigError, InvalidRequest
from omnistage.pacing import Pacer
from omnistage.urgency import READ_CHARS_PER_S, SPOKEN_CHARS_PER_S, Reading, Urgency
from omnistage_thinker.engine.transcript import TextPiece, Transcript
from omnistage_thinker.models.base import Prepared
from omnistage_thinker.models.checkpoint import Checkpoint, load_checkpoint

_LONG_CHARS = 8192
"""From here on a prompt is tokenized in a thread: 1 MiB took 0.5 s, 8 KiB take 3 ms."""

STEP_ALLOWED_S = 10.0
"""No step takes so long on any machine that is of use."""


@dataclass(frozen=True, slots=True)
class TextEngineSettings:
    """Settings of one engine.

    Attributes:
        slots: requests that run at once.
        context: tokens of prompt and answer together; None is the model's own limit, or the cache's if smaller.
        kv_tokens: tokens that the KV cache holds, all requests together. Memory is taken when first used.
        block_tokens: tokens per block, a multiple of 16.
        prefill_tokens: prompt tokens per step when nothing decodes.
        chunk_tokens: prompt tokens per step beside running streams; bounds their pause.
        prefix_cache: whether equal beginnings of prompts are computed once.
        batch_invariant: a request's numbers do not depend on what else runs, bit for bit.
        device: where torch computes.
        dtype: in what: "float32", "bfloat16" or "float16".
        pace: tokens per second that leave at most, each request by itself; None: as soon as they exist.
    """

    slots: int = 8
    context: int | None = None
    kv_tokens: int = 16384
    block_tokens: int = 16
    prefill_tokens: int = 256
    chunk_tokens: int = 64
    prefix_cache: bool = True
    batch_invariant: bool = True
    device: str = "cpu"
    dtype: str = "float32"
    pace: float | None = None


@dataclass(frozen=True, slots=True)
class TextSummary:
    """The end of an answer. End-of-answer tokens do not count as completion."""

    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Answer:
    """An answer as it is written: `async with` it, iterate its pieces, then read its `summary`.

    Leaving the block early stops the request and frees what it holds.
    """

    def __init__(self, items: AsyncGenerator[TextPiece | TextSummary, None]) -> None:
        self._items = items
        self._summary: TextSummary | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._items.aclose()

    async def __aiter__(self) -> AsyncIterator[TextPiece]:
        async for item in self._items:
            if isinstance(item, TextSummary):
                self._summary = item
            else:
                yield item

    @property
    def summary(self) -> TextSummary:
        """Why it ended and what it cost; there after the last piece."""
        assert self._summary is not None, "the answer was not read to its end"
        return self._summary


class TextEngine:
    """Answers conversations with one model; many at once.

    Args:
        checkpoint: model and tokenizer.
        settings: see there.
        on_step: as for `AREngine`.
        clock: monotonic seconds, by which clients read and listen.

    Raises:
        ConfigError: settings that contradict one another or the model.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        settings: TextEngineSettings,
        *,
        on_step: Callable[[StepReport], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings = settings
        self._clock = clock
        self.tokenizer = checkpoint.tokenizer
        self._model = model = checkpoint.model
        context = settings.context or min(model.max_length, settings.kv_tokens)
        if context > model.max_length:
            raise ConfigError(f"context {context} is more than the model's {model.max_length}")
        num_blocks = settings.kv_tokens // settings.block_tokens
        try:
            blocks = BlockManager(num_blocks, settings.block_tokens, prefix_cache=settings.prefix_cache)
            config = SchedulerConfig(settings.slots, settings.prefill_tokens, settings.chunk_tokens, context)
            scheduler = Scheduler(config, blocks)
            runner = model.make_runner(num_blocks, settings.block_tokens, batch_invariant=settings.batch_invariant)
        except ValueError as error:
            raise ConfigError(f"engine settings: {error}") from error
        self._core = AREngine(runner, scheduler, name="thinker", on_step=on_step)
        self._core.start()

    @classmethod
    def load(
        cls,
        path: Path,
        settings: TextEngineSettings | None = None,
        *,
        on_step: Callable[[StepReport], None] | None = None,
    ) -> TextEngine:
        """Load a checkpoint, a GGUF file or a folder, and start. Blocks for seconds.

        Raises:
            ConfigError: a checkpoint or settings that are not supported.
        """
        settings = settings or TextEngineSettings()
        return cls(load_checkpoint(path, device=settings.device, dtype=settings.dtype), settings, on_step=on_step)

    @property
    def context(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self._core.max_length

    @property
    def alive(self) -> bool:
        """Whether it takes requests."""
        return self._core.alive

    def generate(
        self,
        work: GenerateText,
        *,
        emitted: tuple[int, ...] = (),
        emitted_chars: int = 0,
        reading: Reading = "stream",
    ) -> Answer:
        """Answer a conversation. The work begins when the answer is iterated.

        Args:
            work: messages and sampling.
            emitted: token ids of the pieces that were sent already, by whomever; their text is not sent
                again, and what follows equals what an undisturbed run would have sent.
            emitted_chars: length of the text of these pieces.
            reading: how the client takes the answer; decides who is served first, and nothing else. Where speech is
                asked for, the client hears the text, else it reads it.

        Iterating the answer raises:
            InvalidRequest: no messages, a prompt longer than the context, a bias for an unknown token.
            Unavailable, Cancelled, StageFailed: as `AREngine.generate`.
        """
        transcript = Transcript(self.tokenizer, work.sampling.stop)
        transcript.replay(emitted, emitted_chars)
        return Answer(self._generate(work, transcript, emitted, reading))

    async def _generate(
        self, work: GenerateText, transcript: Transcript, emitted: tuple[int, ...], reading: Reading
    ) -> AsyncGenerator[TextPiece | TextSummary, None]:
        urgency = Urgency(reading, now=self._clock(), begun=bool(emitted))
        chars_per_s = READ_CHARS_PER_S if work.speech is None else SPOKEN_CHARS_PER_S
        prompt = await self._prompt(work)
        pacer = Pacer(self.settings.pace)
        cached = 0
        reason: FinishReason = "stop"
        if not transcript.has_stopped():
            request = self._request(work, prompt, emitted, urgency.due)
            async with aclosing(self._core.generate(request)) as outputs:
                async for output in outputs:
                    await pacer.release(1)
                    cached = max(cached, output.num_cached)
                    piece = self._take(transcript, output)
                    if piece is not None:
                        urgency.made(len(piece.text) / chars_per_s, self._clock())
                        self._core.set_due(work.request_id, urgency.due)
                        yield piece
                    reason = output.finish_reason or "stop"
                    if transcript.has_stopped():
                        reason = "stop"
                        break
        piece = transcript.finish()
        if piece is not None:
            yield piece
        yield TextSummary(reason, len(prompt.tokens), transcript.num_tokens, cached)

    @property
    def stalled_s(self) -> float:
        """Seconds by which the current step exceeds what it may take; 0 while all is well."""
        return max(0.0, self._core.stalled_s - STEP_ALLOWED_S)

    def abort(self, request_id: str) -> None:
        """Stop a request; its iterator raises `Cancelled`. Unknown ids are ignored."""
        self._core.abort(request_id)

    async def warm(self) -> None:
        """Run a few steps, alone and together, so that the first request is as fast as the later ones.

        Runs torch's lazy initialisation, and touches the weights and the paths of prefill, decoding and sampling.
        """
        tokens = self.tokenizer.encode("The quick brown fox jumps over the lazy dog. " * 8)
        for params in (SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, top_p=0.9, num_logprobs=1)):
            prompt = self._model.prepare(tokens[: self.context - 1])
            request = ARRequest("warm", prompt.tokens, 4, prompt.payload(params), cache_salt=None)
            async with aclosing(self._core.generate(request)) as outputs:
                async for _ in outputs:
                    pass

    def facts(self) -> dict[str, float]:
        """Gauges and sums of the core under short names, units in the names."""
        return self._core.facts()

    async def close(self) -> None:
        """Stop; requests that still run fail with `Unavailable`. Idempotent."""
        await self._core.close()

    async def _prompt(self, work: GenerateText) -> Prepared:
        if not work.messages:
            raise InvalidRequest("at least one message is needed", param="messages")
        messages = [{"role": message.role, "content": message.content} for message in work.messages]
        if sum(len(message["content"]) for message in messages) < _LONG_CHARS:
            return self._read(messages)
        return await asyncio.to_thread(self._read, messages)

    def _read(self, messages: list[dict[str, str]]) -> Prepared:
        ids = self.tokenizer.encode_chat(messages)
        if len(ids) >= self.context:
            raise InvalidRequest(
                f"the messages have {len(ids)} tokens; this model's context is {self.context} tokens, "
                "of which the answer needs at least one",
                param="messages",
                code="context_length_exceeded",
            )
        return self._model.prepare(ids)

    def _request(self, work: GenerateText, prompt: Prepared, emitted: tuple[int, ...], due: float) -> ARRequest:
        room = self.context - len(prompt.tokens)
        wanted = work.sampling.max_tokens
        return ARRequest(
            request_id=work.request_id,
            prompt=prompt.tokens,
            max_new_tokens=room if wanted is None else min(wanted, room),
            payload=prompt.payload(self._params(work.sampling)),
            emitted=emitted,
            stop_tokens=frozenset(self.tokenizer.eos_ids),
            due=due,
        )

    def _params(self, sampling: Sampling) -> SamplingParams:
        unknown = [token for token in sampling.logit_bias if not 0 <= token < self.tokenizer.vocab_size]
        if unknown:
            raise InvalidRequest(f"logit_bias names token {unknown[0]}, which does not exist", param="logit_bias")
        return SamplingParams(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            seed=sampling.seed,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            logit_bias=sampling.logit_bias,
            num_logprobs=sampling.logprobs,
        )

    def _take(self, transcript: Transcript, output: StepOutput) -> TextPiece | None:
        token = output.token
        if not isinstance(token, int) or token in self.tokenizer.eos_ids:
            return None
        return transcript.add(token, self._logprob(token, output))

    def _logprob(self, token: int, output: StepOutput) -> TokenLogprob | None:
        if output.logprob is None:
            return None
        top = tuple(self._describe(other, value) for other, value in output.top)
        return self._describe(token, output.logprob, top)

    def _describe(self, token: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        text = self.tokenizer.token_text(token)
        return TokenLogprob(token=text, data=self.tokenizer.token_bytes(token), logprob=logprob, top=top)
