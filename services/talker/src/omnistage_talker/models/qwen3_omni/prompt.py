"""The talker's prompt, from the thinker's rows.

    [the user's turns] [role: 3 text rows] [4 pads, bos, first word + codec prefix]

Of the conversation it hears the user's turns alone: text as projected embeddings, media as projected hidden states. The
codec prefix begins behind the role: no thinking, speaker, pad, bos. Each later word is added to a frame, then `tts_eos`
once, then pads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from omnistage.ar.qwen3.positions import Media
from omnistage.errors import InvalidRequest
from omnistage_talker.models.qwen3.request import FrameRequest, FrameSampling, TextRows
from omnistage_talker.models.qwen3_omni.config import OmniTalkerConfig
from omnistage_talker.models.qwen3_omni.talker import OmniTalker

_ROLE = 3
"""Tokens that open a turn: start, who speaks, line break."""

_PADS = 4


@dataclass(frozen=True, slots=True)
class Heard:
    """What the thinker hands over when it has read its prompt.

    Attributes:
        ids: of its prompt, which ends with the opening of the assistant's turn.
        embeds: [tokens, thinker_width], layer 0, media in their places.
        accepted: [tokens, thinker_width], of the layer that the talker takes.
        marks: [3, thinker_width], the embeddings of tts_bos, tts_eos and tts_pad.
        media: pictures and videos of the user's turns.
    """

    ids: Sequence[int]
    embeds: Tensor
    accepted: Tensor
    marks: Tensor
    media: Media


def user_positions(ids: Sequence[int], config: OmniTalkerConfig) -> list[int]:
    """Where the user's turns are, each from its start to the next turn's."""
    text, role = config.text, None
    kept = []
    for index, token in enumerate(ids):
        if token == text.im_start:
            role = ids[index + 1] if index + 1 < len(ids) else None
        if role == text.user:
            kept.append(index)
    return kept


class Prompt:
    """A prompt that is built while the thinker's words arrive; the first one completes it.

    Args:
        talker: the model.
        heard: the thinker's prompt.
        speaker: a name of the configuration, in any case.

    Attributes:
        prefill: [prompt, width]; None until the first word, or the end, has come.
        positions: [3, prompt] float32.
        next_position: of the first frame.
        ids: tokens that the positions were made from.
        tts_pad: [width] what is added to frames for ever after the text.
        later: the words that are added to the frames.

    Raises:
        InvalidRequest: there is no such speaker, or the prompt does not end with the assistant's opening.
    """

    def __init__(self, talker: OmniTalker, heard: Heard, speaker: str) -> None:
        self._talker = talker
        config = talker.config
        token = config.speakers.get(speaker.lower())
        if token is None:
            raise InvalidRequest(f"there is no voice {speaker!r}; there are: {', '.join(config.speakers)}")
        opening = [config.text.im_start, config.text.assistant]
        if list(heard.ids[-_ROLE:-1]) != opening:
            raise InvalidRequest("the thinker's prompt does not end with the opening of the assistant's turn")
        self.prefill: Tensor | None = None
        with torch.inference_mode():
            marks = talker.project_text(heard.marks)
            self._bos, self._eos = marks[0], marks[1]
            self.tts_pad = marks[2]
            self._head = torch.cat((self._user_rows(heard), talker.project_text(heard.embeds[-_ROLE:])))
            codec = config.codec
            prefix = [codec.nothink, codec.think_bos, codec.think_eos, token, codec.pad, codec.bos]
            ids = torch.tensor(prefix, dtype=torch.int64, device=talker.codec_embeddings.device)
            self._prefix = talker.codec_embeddings.codec(ids)
        self.later = TextRows(self.tts_pad)
        kept = user_positions(heard.ids, config)
        self.ids = [heard.ids[index] for index in kept] + [config.text.tts_pad] * (_ROLE + len(prefix))
        self.positions, self.next_position = config.rule.place(self.ids, heard.media)

    def add(self, embeds: Tensor) -> None:
        """More words: [n, thinker_width] layer-0 embeddings of the thinker's tokens."""
        if len(embeds):
            with torch.inference_mode():
                self._take(self._talker.project_text(embeds))

    def finish(self) -> None:
        """Nothing follows: at the latest now there is a `prefill`."""
        with torch.inference_mode():
            self._take(self._eos[None])
        self.later.close()

    def request(self, sampling: FrameSampling) -> FrameRequest:
        """The payload of a sequence."""
        assert self.prefill is not None, "no word has come"
        positions = self.positions.to(self.prefill.device)
        return FrameRequest(self.prefill, self.later, sampling, positions, self.next_position)

    def _take(self, rows: Tensor) -> None:
        if self.prefill is None:
            text = torch.cat((self.tts_pad.expand(_PADS, -1), self._bos[None], rows[:1]))
            self.prefill = torch.cat((self._head, text + self._prefix))
            rows = rows[1:]
        self.later.extend(rows)

    def _user_rows(self, heard: Heard) -> Tensor:
        ids = self._talker.config.rule.ids
        kept = torch.tensor(user_positions(heard.ids, self._talker.config), dtype=torch.int64)
        tokens = torch.tensor(list(heard.ids), dtype=torch.int64)[kept]
        media = torch.isin(tokens, torch.tensor([ids.audio, ids.image, ids.video])).to(heard.embeds.device)
        kept = kept.to(heard.embeds.device)
        text, seen = self._talker.project_text(heard.embeds[kept]), self._talker.project_hidden(heard.accepted[kept])
        return torch.where(media[:, None], seen, text)
