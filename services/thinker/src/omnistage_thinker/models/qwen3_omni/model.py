"""Implements `omnistage_thinker.models.base.TextModel`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from omnistage.ar.kv_cache import PagedKVCache
from omnistage.ar.qwen3.config import read_json
from omnistage.ar.qwen3.positions import Media
from omnistage.ar.sampling import SamplingParams
from omnistage.contracts import MediaGrid
from omnistage.errors import InvalidRequest
from omnistage_thinker.models.base import Prepared, PromptRows, Rows
from omnistage_thinker.models.qwen3_omni.checkpoint import load_thinker
from omnistage_thinker.models.qwen3_omni.prompt import Prompt, Towers, make_prompt
from omnistage_thinker.models.qwen3_omni.runner import SpokenRows, ThinkerRequest, ThinkerRunner
from omnistage_thinker.models.qwen3_omni.thinker import Thinker
from omnistage_thinker.models.tokenizer import Tokenizer
from omnistage_thinker.models.tokenizer_files import load_tokenizer


def load_omni(folder: Path, *, device: str, dtype: str) -> tuple[OmniText, Tokenizer]:
    """Read a checkpoint folder.

    Raises:
        ConfigError: it is no such checkpoint, or something of it is missing or damaged.
    """
    thinker = load_thinker(folder, device=device, dtype=dtype)
    return OmniText(thinker), load_tokenizer(folder, read_json(folder / "config.json"))


class OmniText:
    """A loaded thinker.

    Args:
        thinker: the network.
    """

    def __init__(self, thinker: Thinker) -> None:
        self._thinker = thinker
        self.max_length = thinker.config.text.max_length
        self._marks = thinker.config.speech_marks
        ids = thinker.config.ids
        self._media_ids = frozenset({ids.audio, ids.image, ids.video})

    @property
    def word_rows(self) -> Callable[[Sequence[int]], Rows] | None:
        """See `TextModel.word_rows`."""
        return None if self._marks is None else self._embed

    def make_runner(self, num_blocks: int, block_tokens: int, *, batch_invariant: bool) -> ThinkerRunner:
        """See `TextModel.make_runner`."""
        thinker = self._thinker
        shape = thinker.cache_shape(num_blocks, block_tokens)
        cache = PagedKVCache(shape, dtype=thinker.dtype, device=str(thinker.device))
        return ThinkerRunner(thinker, cache, batch_invariant=batch_invariant)

    def prepare(self, ids: Sequence[int]) -> Prepared:
        """See `TextModel.prepare`."""
        if not self._media_ids.isdisjoint(ids):
            raise InvalidRequest("the messages hold names of media tokens, but no media", param="messages")
        with torch.inference_mode():
            prompt = make_prompt(self._thinker, ids, Media(), Towers())
        return self._prepared(prompt, tuple(ids), ())

    def _prepared(self, prompt: Prompt, keys: tuple[object, ...], media: tuple[MediaGrid, ...]) -> Prepared:
        spoken = None
        if self._marks is not None:
            has_media = not self._media_ids.isdisjoint(prompt.ids)
            spoken = _Spoken(prompt, self._embed(self._marks), media, needs_hidden=has_media)
        return Prepared(tokens=keys, payload=lambda sampling: ThinkerRequest(prompt, sampling), spoken=spoken)

    def _embed(self, ids: Sequence[int]) -> Rows:
        with torch.inference_mode():
            return _array(self._thinker.embed(torch.tensor(list(ids), dtype=torch.int64, device=self._thinker.device)))


class _Spoken:
    """Implements `Spoken`: text is taken as it is embedded; hidden states are needed where there are media alone."""

    def __init__(self, prompt: Prompt, marks: Rows, media: tuple[MediaGrid, ...], *, needs_hidden: bool) -> None:
        self.needs_hidden = needs_hidden
        self._prompt = prompt
        self._marks = marks
        self._media = media
        self._kept: SpokenRows | None = None

    def heard(self, sampling: SamplingParams) -> ThinkerRequest:
        """See `Spoken.heard`."""
        self._kept = SpokenRows()
        return ThinkerRequest(self._prompt, sampling, self._kept)

    def rows(self) -> PromptRows:
        """See `Spoken.rows`."""
        count = len(self._prompt.ids)
        hidden = None if self._kept is None else _array(torch.cat(self._kept.accepted)[:count])
        return PromptRows(
            token_ids=tuple(self._prompt.ids),
            embeds=_array(self._prompt.embeds),
            hidden=hidden,
            marks=self._marks,
            media=self._media,
        )


def _array(tensor: Tensor) -> Rows:
    """Memory that does not change any more; the wire has no bfloat16."""
    rows: Rows = tensor.detach().float().cpu().contiguous().numpy()
    return rows
