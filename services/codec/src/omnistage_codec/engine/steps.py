"""Where a request's next frames are decoded: alone in a thread, or together with those of other requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from omnistage.stall import StallWatch
from omnistage.urgency import Turns, Urgency
from omnistage_codec.engine.batch_turns import BatchTurns
from omnistage_codec.engine.batches import Frames, joined
from omnistage_codec.engine.coalescing import Coalescing
from omnistage_codec.models.base import BatchWaveModel, Samples, Step, WaveModel


class Steps(Protocol):
    """Decodes chunks of one segment, in order."""

    async def decode(self, urgency: Urgency, state: Any, batch: Sequence[Frames], *, silent: int = 0) -> Samples:
        """The samples that they make final. Cancelled while it runs, the step is let run out.

        Args:
            urgency: of the request.
            state: of the request.
            batch: chunks that continue one another.
            silent: of how many of the first frames nobody needs the samples; they may be any.
        """
        ...

    async def close(self) -> None:
        """Wait for steps that run and end the threads."""
        ...


class SingleSteps:
    """Each request by itself. Joining samples costs a tenth of joining frames, so chunks are decoded one by one."""

    def __init__(self, model: WaveModel[Any], turns: Turns, watch: StallWatch) -> None:
        self._model = model
        self._turns = turns
        self._watch = watch

    async def decode(self, urgency: Urgency, state: Any, batch: Sequence[Frames], *, silent: int = 0) -> Samples:
        def step() -> Samples:
            with self._watch.step():
                return np.concatenate([self._one(state, chunk) for chunk in batch])

        return await self._turns.run(urgency, step)

    async def close(self) -> None:
        await self._turns.close()

    def _one(self, state: Any, chunk: Frames) -> Samples:
        return self._model.decode(
            state,
            chunk.frames,
            segment=chunk.segment,
            segment_frame=chunk.segment_frame,
            segment_end=chunk.segment_end,
        )


class BatchSteps:
    """Several requests in one pass of the model."""

    def __init__(
        self,
        model: BatchWaveModel[Any],
        *,
        coalescing: Coalescing,
        live: Callable[[], int],
        watch: StallWatch,
        threads: int,
        clock: Callable[[], float],
    ) -> None:
        self._turns: BatchTurns[Step[Any], Samples] = BatchTurns(
            model.decode_batch,
            name="decode",
            coalescing=coalescing,
            live=live,
            watch=watch,
            threads=threads,
            clock=clock,
        )

    async def decode(self, urgency: Urgency, state: Any, batch: Sequence[Frames], *, silent: int = 0) -> Samples:
        chunk = joined(batch)
        step = Step(
            state=state,
            frames=chunk.frames,
            segment=chunk.segment,
            segment_frame=chunk.segment_frame,
            segment_end=chunk.segment_end,
            silent=silent,
        )
        return await self._turns.run(urgency, step)

    async def close(self) -> None:
        await self._turns.close()
