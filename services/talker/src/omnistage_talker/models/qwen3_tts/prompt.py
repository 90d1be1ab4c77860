"""The talker's prompt: which text and which codec embeddings are added to one another, position by position.

    [instruction] [role: 3 text rows] [pads .. bos + codec prefix, speaker, codec pad]

then, streaming, the text meets the codec's start (and the reference recording's frames) position by position, and what
is left of it is added to the frames that are generated; or, with the whole text read first, all of it stands before
the start. Text always ends with `tts_eos`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from omnistage_talker.models.qwen3.request import TextRows
from omnistage_talker.models.qwen3_tts.config import Qwen3TTSConfig
from omnistage_talker.models.qwen3_tts.talker import Embeddings

AUTO = "auto"
_CHINESE = "chinese"


@dataclass(frozen=True, slots=True)
class Manner:
    """What shapes a request's prompt beside its text.

    Attributes:
        role_ids: the three text tokens that open the assistant's turn.
        instruct_ids: the turn with the instruction; empty for none. The 0.6B kind ignores it.
        language: a name of the configuration, or "auto".
        speaker: a name of the configuration; None for none.
        embedding: [width] of a cloned speaker; None for none.
        ref_ids: what the reference recording says.
        ref_codes: [frames, groups] of the recording; None to take only the timbre.
        non_streaming: whether all text stands before the first frame.
    """

    role_ids: tuple[int, ...]
    instruct_ids: tuple[int, ...] = ()
    language: str = AUTO
    speaker: str | None = None
    embedding: Tensor | None = None
    ref_ids: tuple[int, ...] = ()
    ref_codes: Tensor | None = None
    non_streaming: bool = False


def language_token(config: Qwen3TTSConfig, language: str, speaker: str | None) -> int | None:
    """The codec token of the language, or None to let the model find out.

    A speaker of a dialect speaks it where Chinese or nothing is asked for.
    """
    language = language.lower()
    dialect = config.dialects.get((speaker or "").lower())
    if dialect is not None and language in (AUTO, _CHINESE):
        return config.languages[dialect]
    return None if language == AUTO else config.languages[language]


class Prompt:
    """A prompt that is built while its text arrives; `prefill` is there as soon as enough of it is known.

    Args:
        embeddings: of the model.
        config: of the checkpoint.
        manner: everything but the text.

    Attributes:
        prefill: [prompt, width]; None while text is missing.
        later: the text that is added to the frames.
        num_text: text tokens so far, without those of the reference.
    """

    def __init__(self, embeddings: Embeddings, config: Qwen3TTSConfig, manner: Manner) -> None:
        self._embeddings = embeddings
        self._config = config
        self._manner = manner
        self.prefill: Tensor | None = None
        self.later = TextRows(embeddings.tts_pad)
        self.num_text = 0
        with torch.inference_mode():
            self._start = self._start_rows()
            self._pending = [embeddings.text(list(manner.ref_ids))] if manner.ref_codes is not None else []

    def add(self, ids: list[int]) -> None:
        """More text tokens."""
        if not ids:
            return
        self.num_text += len(ids)
        with torch.inference_mode():
            self._take(self._embeddings.text(ids))

    def finish(self) -> None:
        """The text is complete: at the latest now there is a `prefill`."""
        with torch.inference_mode():
            self._take(self._embeddings.tts_eos[None])
            if self.prefill is None:
                self._build(torch.cat(self._pending))
        self.later.close()

    def _take(self, rows: Tensor) -> None:
        if self.prefill is not None:
            self.later.extend(rows)
            return
        self._pending.append(rows)
        enough = sum(len(part) for part in self._pending) >= len(self._start)
        if enough and not self._manner.non_streaming:
            self._build(torch.cat(self._pending))

    def _build(self, text: Tensor) -> None:
        start, pad = self._start, self._embeddings.tts_pad
        head = self._head()
        if self._manner.non_streaming:
            codec_pad = self._codec([self._config.codec.pad])
            self.prefill = torch.cat((*head, text + codec_pad, start + pad))
        else:
            meeting, rest = text[: len(start)], text[len(start) :]
            missing = len(start) - len(meeting)
            if missing:
                meeting = torch.cat((meeting, pad.expand(missing, -1)))
            self.prefill = torch.cat((*head, start + meeting))
            self.later.extend(rest)
        self._pending = []

    def _head(self) -> list[Tensor]:
        """Everything before text and start meet."""
        embeddings, config, manner = self._embeddings, self._config, self._manner
        token = language_token(config, manner.language, manner.speaker)
        codec = config.codec
        prefix = [codec.nothink] if token is None else [codec.think]
        prefix += [codec.think_bos, *([] if token is None else [token]), codec.think_eos]
        rows = [self._codec(prefix)]
        if manner.embedding is not None:
            rows.append(manner.embedding.to(rows[0])[None])
        elif manner.speaker is not None:
            rows.append(self._codec([config.speakers[manner.speaker.lower()]]))
        rows.append(self._codec([codec.pad]))
        codec_side = torch.cat(rows)
        pads = embeddings.tts_pad.expand(len(codec_side) - 1, -1)
        head = [embeddings.text(list(manner.role_ids)), codec_side + torch.cat((pads, embeddings.tts_bos[None]))]
        if manner.instruct_ids and not config.small:
            head.insert(0, embeddings.text(list(manner.instruct_ids)))
        return head

    def _start_rows(self) -> Tensor:
        """The codec's start, then the reference recording's frames."""
        start = self._codec([self._config.codec.bos])
        codes = self._manner.ref_codes
        if codes is None:
            return start
        return torch.cat((start, self._embeddings.frames(codes.to(self._embeddings.device))))

    def _codec(self, ids: list[int]) -> Tensor:
        return self._embeddings.codec(torch.tensor(ids, dtype=torch.int64, device=self._embeddings.device))
