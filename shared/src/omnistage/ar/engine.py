"""The step loop, in a thread of its own, and its asyncio side."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress

from omnistage.ar.counters import EngineCounters, StepReport
from omnistage.ar.request import ARRequest
from omnistage.ar.runner import Emitted, Runner
from omnistage.ar.scheduler import Batch, Row, Scheduler
from omnistage.ar.sequence import FinishReason, Sequence
from omnistage.ar.stream import StepOutput, Stream
from omnistage.errors import Cancelled, InvalidRequest, OmnistageError, StageFailed, Unavailable

SWITCH_INTERVAL_S = 0.0005
"""How long the step thread may hold the interpreter while the event loop waits. At the default of 5 ms a hop on the
loop beside a Python-bound thread took 5.6 ms in the median and 21 ms at p99."""

_LOOK_AROUND_S = 1.0
"""An idle thread looks round this often, so that `stalled_s` stays near 0 while it waits for slow readers."""

_log = logging.getLogger(__name__)


class AREngine:
    """Continuous batching over a runner.

    `generate` is called in any event loop; the scheduler and the runner are touched by the step thread only.

    Args:
        runner: computes steps.
        scheduler: decides them.
        name: of the thread, for people.
        max_unread: outputs that a reader may be behind before its sequence is held.
        on_step: told of each step, in the step thread; must be quick.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        *,
        name: str = "ar",
        max_unread: int = 64,
        on_step: Callable[[StepReport], None] | None = None,
    ) -> None:
        self._on_step = on_step
        self._round_at = time.monotonic()
        self.counters = EngineCounters()
        self._runner = runner
        self._scheduler = scheduler
        self._max_unread = max_unread
        self._streams: dict[str, Stream] = {}
        self._inbox: deque[Callable[[], None]] = deque()
        self._wake = threading.Condition()
        self._closing = False
        self._ended = False
        self._broken: str | None = None
        self._outbox: dict[asyncio.AbstractEventLoop, list[tuple[Stream, StepOutput | OmnistageError]]] = {}
        self._thread = threading.Thread(target=self._run, name=f"{name}-steps", daemon=True)

    @property
    def max_length(self) -> int:
        """Tokens that a sequence may have, prompt and answer."""
        return self._scheduler.config.max_length

    @property
    def alive(self) -> bool:
        """Whether the step thread runs and takes requests."""
        return self._thread.is_alive() and self._broken is None and not self._closing

    @property
    def stalled_s(self) -> float:
        """Seconds since the step thread last came round while something is to be done; else 0."""
        busy = self._inbox or self._scheduler.running or self._scheduler.waiting
        return time.monotonic() - self._round_at if busy else 0.0

    def start(self) -> None:
        """Start the step thread; lowers the interpreter's switch interval to `SWITCH_INTERVAL_S` for the process."""
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_S))
        self._thread.start()

    async def generate(self, request: ARRequest) -> AsyncGenerator[StepOutput, None]:
        """Generate; the last output carries `finish_reason`. Leaving the iterator early (aclose) aborts the request.

        Raises:
            InvalidRequest: the prompt is empty or longer than the context, or the request id is in use.
            Unavailable: the engine is not running.
            Cancelled: `abort` was called.
            StageFailed: the step failed for this request.
        """
        stream = self._open(request)
        finished = False
        try:
            while not finished:
                output = await stream.get()
                if stream.sequence.held:
                    self._notify()
                finished = output.finish_reason is not None
                yield output
        except OmnistageError:
            finished = True
            raise
        finally:
            if not finished:
                self._post(lambda: self._abort(stream))

    def abort(self, request_id: str) -> None:
        """Stop a request between two steps; its reader gets `Cancelled`. Unknown ids are ignored."""

        def act() -> None:
            stream = self._streams.get(request_id)
            if stream is not None:
                self._fail(stream, Cancelled("the request was aborted"))

        self._post(act)

    def wake(self) -> None:
        """Have the engine look again at what its sequences wait for (`ARRequest.ready`)."""
        self._notify()

    def set_due(self, request_id: str, due: float) -> None:
        """Change when the reader of a request runs dry. Unknown ids are ignored."""

        def act() -> None:
            stream = self._streams.get(request_id)
            if stream is not None:
                stream.sequence.due = due

        self._post(act)

    async def close(self) -> None:
        """Fail what still runs with `Unavailable` and end the thread. Idempotent."""
        self._closing = True
        self._notify()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join)

    def facts(self) -> dict[str, float]:
        """Gauges and sums under short names, units in the names."""
        counters, blocks = self.counters, self._scheduler.blocks
        return {
            "steps": float(counters.steps),
            "step_time_s": counters.step_time_s,
            "last_step_s": counters.last_step_s,
            "stalled_s": self.stalled_s,
            "failed_steps": float(counters.failed_steps),
            "tokens": float(counters.tokens),
            "emitted_tokens": float(counters.emitted),
            "batch": float(counters.last_batch),
            "batch_max": float(counters.max_batch),
            "running": float(len(self._scheduler.running)),
            "waiting": float(len(self._scheduler.waiting)),
            "preemptions": float(self._scheduler.num_preemptions),
            "prefix_hits": float(self._scheduler.num_prefix_hits),
            "kv_use": 1.0 - blocks.num_free / blocks.num_blocks,
        }

    def _open(self, request: ARRequest) -> Stream:
        if not self.alive:
            raise Unavailable(self._broken or "the engine is not running")
        tokens = [*request.prompt, *request.emitted]
        if not 0 < len(tokens) <= self.max_length or len(request.prompt) >= self.max_length:
            message = f"{len(tokens)} tokens do not fit the context of {self.max_length} tokens"
            raise InvalidRequest(message, code="context_length_exceeded")
        sequence = Sequence(
            request_id=request.request_id,
            tokens=tokens,
            num_prompt=len(request.prompt),
            max_new_tokens=request.max_new_tokens,
            stop_tokens=request.stop_tokens,
            due=request.due,
            cache_salt=request.cache_salt,
            payload=request.payload,
            ready=request.ready,
        )
        stream = Stream(sequence, asyncio.get_running_loop())
        reason = self._complete(request)
        if reason is not None:
            stream.put(StepOutput(None, len(request.emitted), finish_reason=reason))
            return stream
        if not self._post(lambda: self._add(stream)):
            raise Unavailable("the engine is not running")
        return stream

    def _complete(self, request: ARRequest) -> FinishReason | None:
        """Why the answer is complete with what was emitted, or None."""
        if request.emitted and request.emitted[-1] in request.stop_tokens:
            return "stop"
        full = len(request.prompt) + len(request.emitted) >= self.max_length
        return "length" if full or len(request.emitted) >= request.max_new_tokens else None

    def _post(self, act: Callable[[], None]) -> bool:
        """Have the step thread do something before its next step. False when it has ended."""
        with self._wake:
            if not self._ended:
                self._inbox.append(act)
                self._wake.notify()
            return not self._ended

    def _notify(self) -> None:
        with self._wake:
            self._wake.notify()

    def _run(self) -> None:
        try:
            while not self._closing:
                self._turn()
            reason = "the engine is shutting down"
        except Exception:  # noqa: BLE001
            # A bug in policy or delivery: nothing can be scheduled any more, so every reader must hear of it.
            _log.exception("the step loop broke")
            self._broken = reason = "the step loop broke"
        with self._wake:
            self._ended = True
        self._fail_all(Unavailable(reason))

    def _fail_all(self, error: Unavailable) -> None:
        """Tell every reader, also those whose request was not taken up yet. Nothing is posted any more."""
        while self._inbox:
            with suppress(Exception):
                self._inbox.popleft()()
        for stream in list(self._streams.values()):
            with suppress(Exception):
                self._scheduler.remove(stream.sequence)
            self._outbox.setdefault(stream.loop, []).append((stream, error))
        self._streams.clear()
        self._deliver()

    def _turn(self) -> None:
        self._round_at = time.monotonic()
        while self._inbox:
            self._inbox.popleft()()
        for stream in self._streams.values():
            stream.sequence.held = self._must_wait(stream)
        batch = self._scheduler.schedule()
        if batch.rows:
            self._step(batch)
        self._deliver()
        if not batch.rows:
            with self._wake:
                if not self._inbox and not self._closing and not self._released():
                    self._wake.wait(_LOOK_AROUND_S)

    def _must_wait(self, stream: Stream) -> bool:
        """Whether the reader is too far behind, or the input of the next step is not there yet."""
        sequence = stream.sequence
        late = sequence.ready is not None and not sequence.ready(sequence.num_generated)
        return late or stream.unread >= self._max_unread

    def _released(self) -> bool:
        """Whether a held sequence could go on since the batch was made."""
        return any(s.sequence.held and not self._must_wait(s) for s in self._streams.values())

    def _step(self, batch: Batch) -> None:
        counters = self.counters
        began = time.perf_counter()
        try:
            emitted = self._runner.step(batch)
        except Exception:  # noqa: BLE001
            # Whatever a model raises concerns the rows of this step at most; alone each shows whether it is the cause.
            _log.exception("a step of %d rows failed", len(batch.rows))
            counters.failed_steps += 1
            batch, emitted = self._step_alone(batch)
        batch, emitted = self._drop_failed(batch, emitted)
        reasons = self._scheduler.commit(batch, [item.token for item in emitted])
        for row, item, reason in zip(batch.emitting, emitted, reasons, strict=True):
            self._send(row.sequence, item, reason)
        counters.note(batch, len(emitted), time.perf_counter() - began)
        if self._on_step is not None:
            self._on_step(self._report(batch))

    def _report(self, batch: Batch) -> StepReport:
        blocks = self._scheduler.blocks
        return StepReport(
            duration_s=self.counters.last_step_s,
            rows=len(batch.rows),
            tokens=batch.num_tokens,
            blocks_used=blocks.num_blocks - blocks.num_free,
            blocks_cached=blocks.num_cached,
            blocks_free=blocks.num_free - blocks.num_cached,
        )

    def _step_alone(self, batch: Batch) -> tuple[Batch, list[Emitted]]:
        """Compute each row in a step of its own; those that fail again fail their sequence only."""
        kept = Batch()
        emitted: list[Emitted] = []
        for row in batch.rows:
            single = Batch([row], int(row.count == 1), row.count)
            try:
                emitted += self._runner.step(single)
            except Exception as error:  # noqa: BLE001
                # As above; the reader gets the kind of error, the log has the rest.
                self._fail_sequence(row.sequence, f"a step failed: {type(error).__name__}")
                continue
            _append(kept, row)
        return kept, emitted

    def _drop_failed(self, batch: Batch, emitted: list[Emitted]) -> tuple[Batch, list[Emitted]]:
        if all(item.failure is None for item in emitted):
            return batch, emitted
        kept = Batch()
        items = iter(emitted)
        good: list[Emitted] = []
        for row in batch.rows:
            item = next(items) if row.emits else None
            if item is not None and item.failure is not None:
                self._fail_sequence(row.sequence, item.failure)
                continue
            _append(kept, row)
            if item is not None:
                good.append(item)
        return kept, good

    def _fail_sequence(self, sequence: Sequence, message: str) -> None:
        own = self._scheduler.blocks.disown(sequence.block_table)
        if own:
            self._runner.discard(own)
        stream = self._streams[sequence.request_id]
        self._fail(stream, StageFailed(message))

    def _add(self, stream: Stream) -> None:
        request_id = stream.sequence.request_id
        if request_id in self._streams:
            error = InvalidRequest(f"request id {request_id} is in use", code="duplicate_request_id")
            self._outbox.setdefault(stream.loop, []).append((stream, error))
            return
        self._streams[request_id] = stream
        self._scheduler.add(stream.sequence)

    def _abort(self, stream: Stream) -> None:
        if self._streams.get(stream.sequence.request_id) is stream:
            del self._streams[stream.sequence.request_id]
            self._scheduler.remove(stream.sequence)

    def _fail(self, stream: Stream, error: OmnistageError) -> None:
        self._abort(stream)
        self._outbox.setdefault(stream.loop, []).append((stream, error))

    def _send(self, sequence: Sequence, item: Emitted, reason: FinishReason | None) -> None:
        stream = self._streams[sequence.request_id]
        index = sequence.num_generated - 1
        output = StepOutput(item.token, index, item.logprob, item.top, item.extra, reason, sequence.num_cached)
        stream.sent += 1
        self._outbox.setdefault(stream.loop, []).append((stream, output))
        if reason is not None:
            del self._streams[sequence.request_id]

    def _deliver(self) -> None:
        """Hand a step's outputs to the readers: one wake-up per event loop."""
        outbox, self._outbox = self._outbox, {}
        for loop, items in outbox.items():
            try:
                loop.call_soon_threadsafe(_put_all, items)
            except RuntimeError:
                # The loop is closed, so nobody reads any more.
                for stream, _ in items:
                    self._abort(stream)


def _append(batch: Batch, row: Row) -> None:
    batch.rows.append(row)
    batch.num_tokens += row.count


def _put_all(items: list[tuple[Stream, StepOutput | OmnistageError]]) -> None:
    for stream, item in items:
        stream.put(item)
