"""POST /v1/chat/completions."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from omnistage_gateway.schemas.base import Shape, Voice, unsupported
from omnistage_gateway.schemas.chat_messages import Turn

AudioFormatName = Literal["wav", "mp3", "flac", "opus", "aac", "pcm16"]
Modality = Literal["text", "audio"]
_Stop = Annotated[str, StringConstraints(min_length=1, max_length=512)]
_TokenId = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}$")]
_Bias = Annotated[float, Field(ge=-100, le=100)]


def _only(*allowed: Any) -> BeforeValidator:
    """Accept values that change nothing, refuse the others as unsupported."""

    def check(value: Any) -> Any:
        # True == 1 in Python, but not in JSON.
        if any(value == other and type(value) is type(other) for other in allowed):
            return value
        shown = ", ".join(json.dumps(other) for other in allowed) or "null"
        raise unsupported(f"this server cannot honour it; allowed: {shown}")

    return BeforeValidator(check)


def _text_only(value: Any) -> Any:
    if value != {"type": "text"}:
        raise unsupported('this model cannot be held to a format; only {"type": "text"} is supported')
    return value


class StreamOptions(Shape):
    """Attributes:
    include_usage: a last chunk with usage and no choices; the other chunks then carry `usage: null`.
    include_obfuscation: true pads text chunks to equal sizes; they are not padded unless asked.
    """

    include_usage: bool = False
    include_obfuscation: bool = False


class AudioParam(Shape):
    """How the answer is to sound. `voice` may be left out where the model has a default voice.

    An answer of which nothing can be spoken sounds like 0.2 s of silence.
    """

    voice: Voice | None = None
    format: AudioFormatName


class ChatRequest(Shape):
    """A conversation to be continued.

    Honoured: the fields up to `stream_options`. Accepted because they change nothing here: `user`,
    `safety_identifier` and `prompt_cache_key` (labels for the provider's own bookkeeping), `metadata` (kept only with
    stored answers), `parallel_tool_calls` (there are no tools), `prompt_cache_retention` "in_memory" (the prefix
    cache is in memory). The rest is accepted at the value that asks for nothing, and refused by name otherwise.

    Attributes:
        seed: a random one is made without it; `n` answers use seeds derived from it, the first one it itself.
        n: answers run side by side; the prompt's tokens are counted once in `usage`.
        max_tokens: the older name of max_completion_tokens; not both.
        temperature, top_p: the model's own defaults without them; a top_p of 0 keeps the likeliest token only.
        stop: up to 4 texts of at most 512 characters.
        logit_bias: up to 1024 token ids of the model's own vocabulary, as texts.
    """

    model: str
    messages: list[Turn] = Field(min_length=1)
    modalities: list[Modality] = Field(["text"], min_length=1, max_length=2)
    audio: AudioParam | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    n: int = Field(1, ge=1, le=8)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stop: _Stop | Annotated[list[_Stop], Field(max_length=4)] | None = None
    max_completion_tokens: int | None = Field(None, ge=1)
    max_tokens: int | None = Field(None, ge=1)
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    logit_bias: Annotated[dict[_TokenId, _Bias], Field(max_length=1024)] | None = None
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)
    stream: bool = False
    stream_options: StreamOptions | None = None

    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    metadata: (
        Annotated[
            dict[Annotated[str, StringConstraints(max_length=64)], Annotated[str, StringConstraints(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None
    parallel_tool_calls: bool | None = None

    response_format: Annotated[dict[str, Any] | None, BeforeValidator(_text_only)] = None
    tools: Annotated[Any, _only([])] = None
    tool_choice: Annotated[Any, _only("none", "auto")] = None
    functions: Annotated[Any, _only([])] = None
    function_call: Annotated[Any, _only("none", "auto")] = None
    store: Annotated[Any, _only(False)] = None
    service_tier: Annotated[Any, _only("auto", "default")] = None
    reasoning_effort: Annotated[Any, _only("none")] = None
    verbosity: Annotated[Any, _only("medium")] = None
    prompt_cache_retention: Annotated[Any, _only("in_memory")] = None
    prompt_cache_options: Annotated[Any, _only()] = None
    prediction: Annotated[Any, _only()] = None
    web_search_options: Annotated[Any, _only()] = None
    moderation: Annotated[Any, _only()] = None
