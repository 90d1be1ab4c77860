"""What requests cost, in OpenAI's shapes: pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omnistage.contracts import TextDone

AUDIO_TOKENS_PER_S = 20
"""A token of audio is each started 50 ms that the client gets, whatever the voice makes it from.

OpenAI counts the audio that its models speak by the same measure:
https://platform.openai.com/docs/guides/realtime-costs
"""


@dataclass(frozen=True)
class Answered:
    """One answer of a chat request.

    Attributes:
        text: why it stopped, and its tokens of text.
        audio_s: seconds of sound that the client got; 0 where it asked for none.
    """

    text: TextDone
    audio_s: float = 0.0


def audio_tokens(duration_s: float) -> int:
    """Tokens of so much audio."""
    return math.ceil(round(duration_s * AUDIO_TOKENS_PER_S, 6))


def speech_usage(input_chars: int, duration_s: float) -> dict[str, Any]:
    """Usage of speech: voices have no tokens of text, so it is characters in; and tokens of audio out."""
    output = audio_tokens(duration_s)
    return {"input_tokens": input_chars, "output_tokens": output, "total_tokens": input_chars + output}


def chat_usage(answers: Sequence[Answered]) -> dict[str, Any]:
    """Tokens of one request: the prompt once, text and audio of the answers summed."""
    first = answers[0].text
    audio = sum(audio_tokens(answer.audio_s) for answer in answers)
    completion = sum(answer.text.completion_tokens for answer in answers) + audio
    return {
        "prompt_tokens": first.prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": first.prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": first.cached_tokens, "audio_tokens": 0},
        "completion_tokens_details": {
            "reasoning_tokens": 0,
            "audio_tokens": audio,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
    }
