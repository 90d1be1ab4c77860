"""Between HTTP and the contracts: pure functions. Whatever a model cannot do is refused here, by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from omnistage.contracts import (
    ChatMessage,
    GenerateText,
    Sampling,
    SpeakText,
    SpeechOptions,
    VoiceReference,
    encode,
)
from omnistage.errors import InvalidRequest
from omnistage.pipelines import Pipeline
from omnistage.pipelines.catalogue import TEXT
from omnistage.transport import MAX_BODY_BYTES
from omnistage_gateway.audio import FORMATS, AudioFormat
from omnistage_gateway.chat_voice import ChatVoice, with_cloned
from omnistage_gateway.dispatch.fleet_table import EngineView
from omnistage_gateway.dispatch.interface import Plan
from omnistage_gateway.problems import UNSUPPORTED
from omnistage_gateway.schemas.chat import ChatRequest
from omnistage_gateway.schemas.speech import SpeechRequest
from omnistage_gateway.served import UNNAMED_VOICE, Served, entry_work, makes_audio, spoken_voice
from omnistage_gateway.speech_extras import VoiceSource, check_extras, extra_options, voice_source
from omnistage_gateway.voices import StoredVoice

SEED_BITS = 63
_SMALLEST_TOP_P = 1e-9
_REQUEST_ID_CHARS = 64
"""The longest that a subject can hold."""


@dataclass(frozen=True)
class SpeechJob:
    """A checked speech request.

    Attributes:
        plan: for the dispatcher.
        audio_format: of the answer.
        tempo: stretch that the gateway adds to what the voice does natively.
        rate_hz: asked for, or None.
        speech, text: what the talker is asked for.
        source: what the voice is cloned from; None for a voice of the model's own.
        events, whole: how the answer is sent: server-sent events, or one piece; else a stream of bytes.
    """

    plan: Plan
    audio_format: AudioFormat
    tempo: float
    rate_hz: int | None
    events: bool
    whole: bool
    speech: SpeechOptions
    text: str
    source: VoiceSource | None = None

    @property
    def input_chars(self) -> int:
        """Length of the text in characters."""
        return len(self.text)


def speech_job(
    request: SpeechRequest,
    served: Served,
    view: EngineView,
    stored: StoredVoice | None = None,
    *,
    seed: int,
    tenant: str,
    deadline_s: float | None = None,
    retry_key: str = "",
) -> SpeechJob:
    """Check a speech request against its model.

    Args:
        view: what the talker's engine announces; "speed_min" and "speed_max" bound what the voice does natively.
        stored: the kept voice that the request names, if it names one.
        seed: used if the request has none.
        deadline_s: the client's own, if it has one; the model's setting is the ceiling.
        retry_key: see `Plan`.

    Raises:
        InvalidRequest: names the field.
    """
    spec = served.spec
    _check_speech(request, served)
    check_extras(request, served, view.speech)
    source = voice_source(request, served, view.speech, stored)
    own = spoken_voice(served, view, request.voice) if source is None and stored is None else None
    native = min(max(request.speed, view.facts.get("speed_min", 1.0)), view.facts.get("speed_max", 1.0))
    speech = msgspec.structs.replace(
        extra_options(request, view.speech, stored),
        voice=own or next(iter(view.voices), UNNAMED_VOICE),
        speed=native,
        seed=as_seed(seed if request.seed is None else request.seed),
    )
    build = partial(_speak, spec.graph.name, speech, request.input)
    plan = _plan(served, spec.graph, build, tenant, deadline_s, retry_key, streamed=request.stream)
    _check_size(plan, "input")
    return SpeechJob(
        plan=plan,
        audio_format=FORMATS[request.response_format],
        tempo=request.speed / native,
        rate_hz=request.sample_rate,
        events=request.stream_format == "sse",
        whole=not request.stream,
        speech=speech,
        text=request.input,
        source=source,
    )


def with_reference(job: SpeechJob, reference: VoiceReference) -> SpeechJob:
    """The same with what its voice is cloned from.

    Raises:
        InvalidRequest: all of it together is too large.
    """
    speech = msgspec.structs.replace(job.speech, reference=reference)
    plan = replace(job.plan, build=partial(_speak, job.plan.pipeline.name, speech, job.text))
    _check_size(plan, "input")
    return replace(job, plan=plan, speech=speech, source=None)


def _check_speech(request: SpeechRequest, served: Served) -> None:
    """What a speech request may not be, whatever the voice."""
    spec = served.spec
    if entry_work(spec) is not SpeakText:
        raise InvalidRequest(
            f"The model '{served.key}' answers conversations; it is not a text-to-speech model.",
            code=UNSUPPORTED,
            param="model",
        )
    if not request.input.strip():
        raise InvalidRequest("Invalid value for 'input': there is nothing to speak.", param="input")
    if len(request.input) > spec.max_input_chars:
        raise InvalidRequest(
            f"Invalid value for 'input': {len(request.input)} characters, "
            f"at most {spec.max_input_chars} are allowed for model '{served.key}'.",
            code="string_above_max_length",
            param="input",
        )
    lowest_hz = min(FORMATS[request.response_format].rates_hz, default=0)
    if request.sample_rate is not None and request.sample_rate < lowest_hz:
        raise InvalidRequest(
            f"Invalid value for 'sample_rate': {request.response_format} is made from {lowest_hz} Hz on; "
            "lower rates are for opus, flac, wav and pcm.",
            code=UNSUPPORTED,
            param="sample_rate",
        )
    if request.stream_format == "sse" and not request.stream:
        raise InvalidRequest("Invalid value for 'stream': stream_format 'sse' is a stream.", param="stream")


def _speak(
    pipeline: str, speech: SpeechOptions, text: str, request_id: str, node: str, route: Mapping[str, str]
) -> SpeakText:
    return SpeakText(request_id=request_id, pipeline=pipeline, node=node, route=dict(route), speech=speech, text=text)


@dataclass(frozen=True)
class ChatJob:
    """A checked chat request.

    Attributes:
        model: key of the model that answers.
        plans: one per answer.
        audio_format: None for text alone.
        logprobs: whether they are shown.
        include_usage, obfuscate: see `StreamOptions`.
        source: the kept voice that the answers are cloned from; None for other voices.
    """

    model: str
    plans: tuple[Plan, ...]
    audio_format: AudioFormat | None
    stream: bool
    logprobs: bool
    include_usage: bool
    obfuscate: bool
    source: VoiceSource | None = None


def chat_job(
    request: ChatRequest,
    served: Served,
    messages: tuple[ChatMessage, ...],
    find_voice: Callable[[], ChatVoice],
    *,
    seed: int,
    tenant: str,
    deadline_s: float | None = None,
    retry_key: str = "",
) -> ChatJob:
    """Check a chat request against its model.

    Args:
        messages: the conversation, with references to earlier audio resolved.
        find_voice: gives the voice that the request asks for, or raises InvalidRequest; called if it may ask for one.
        seed: used if the request has none.
        deadline_s: the client's own, if it has one; the model's setting is the ceiling.
        retry_key: see `Plan`.

    Raises:
        InvalidRequest: names the field.
    """
    spec = served.spec
    if entry_work(spec) is not GenerateText:
        raise InvalidRequest(
            f"The model '{served.key}' cannot answer conversations; use POST /v1/audio/speech.",
            code=UNSUPPORTED,
            param="model",
        )
    _check_together(request)
    audio_format = _chat_audio(request, served)
    graph = spec.graph if audio_format is not None or spec.graph.name == TEXT.name else TEXT
    voice = find_voice() if request.audio is not None else None
    seeds = [derived_seed(as_seed(seed if request.seed is None else request.seed), index) for index in range(request.n)]
    sampling = _sampling(request, served)
    options = request.stream_options
    plans = tuple(
        _plan(
            served,
            graph,
            partial(_generate, graph.name, messages, sampling, None if voice is None else voice.speech, seed),
            tenant,
            deadline_s,
            f"{retry_key}-{index}" if retry_key else "",
            streamed=request.stream,
        )
        for index, seed in enumerate(seeds)
    )
    _check_size(plans[0], "messages")
    return ChatJob(
        model=served.key,
        plans=plans,
        audio_format=audio_format,
        stream=request.stream,
        logprobs=request.logprobs,
        include_usage=options is not None and options.include_usage,
        obfuscate=options is not None and options.include_obfuscation,
        source=None if voice is None else voice.source,
    )


def with_chat_reference(job: ChatJob, reference: VoiceReference) -> ChatJob:
    """The same with what its voice is cloned from.

    Raises:
        InvalidRequest: all of it together is too large.
    """
    plans = with_cloned(job.plans, reference)
    _check_size(plans[0], "messages")
    return replace(job, plans=plans, source=None)


def _generate(
    pipeline: str,
    messages: tuple[ChatMessage, ...],
    sampling: Sampling,
    speech: SpeechOptions | None,
    seed: int,
    request_id: str,
    node: str,
    route: Mapping[str, str],
) -> GenerateText:
    return GenerateText(
        request_id=request_id,
        pipeline=pipeline,
        node=node,
        route=dict(route),
        messages=messages,
        sampling=msgspec.structs.replace(sampling, seed=seed),
        speech=None if speech is None else msgspec.structs.replace(speech, seed=seed),
    )


def _check_size(plan: Plan, param: str) -> None:
    """A request travels over the bus in one message.

    Raises:
        InvalidRequest: it would not fit.
    """
    stages = {stage.name: plan.spec.nodes[stage.name] for stage in plan.pipeline.stages()}
    work = plan.build("0" * _REQUEST_ID_CHARS, plan.pipeline.entry().destination, stages)
    if len(encode(work)) > MAX_BODY_BYTES:
        raise InvalidRequest(
            f"Invalid value for '{param}': too long; a request may have {MAX_BODY_BYTES // 1024} KiB in all.",
            code="string_above_max_length",
            param=param,
        )


def _plan(
    served: Served,
    graph: Pipeline,
    build: partial[SpeakText] | partial[GenerateText],
    tenant: str,
    deadline_s: float | None,
    retry_key: str,
    *,
    streamed: bool,
) -> Plan:
    return Plan(
        model=served.key,
        spec=served.spec,
        pipeline=graph,
        build=build,
        tenant=tenant,
        deadline_s=min(served.spec.deadline_s, deadline_s or served.spec.deadline_s),
        streamed=streamed,
        retry_key=retry_key,
    )


def _check_together(request: ChatRequest) -> None:
    """Fields that make sense only with, or without, another."""
    if len(set(request.modalities)) < len(request.modalities):
        raise InvalidRequest("Invalid value for 'modalities': each may be named once.", param="modalities")
    if "text" not in request.modalities:
        raise InvalidRequest(
            'Invalid value for \'modalities\': audio comes with its text; use ["text", "audio"].', param="modalities"
        )
    if request.top_logprobs is not None and not request.logprobs:
        raise InvalidRequest("Invalid value for 'top_logprobs': it needs logprobs to be true.", param="top_logprobs")
    if request.stream_options is not None and not request.stream:
        raise InvalidRequest("Invalid value for 'stream_options': it needs stream to be true.", param="stream_options")
    if request.max_tokens is not None and request.max_completion_tokens is not None:
        raise InvalidRequest(
            "Invalid value for 'max_tokens': give max_tokens or max_completion_tokens, not both.", param="max_tokens"
        )


def _chat_audio(request: ChatRequest, served: Served) -> AudioFormat | None:
    wanted = "audio" in request.modalities
    if not wanted and request.audio is None:
        return None
    if not wanted:
        raise InvalidRequest('Invalid value for \'audio\': it needs modalities ["text", "audio"].', param="audio")
    if not makes_audio(served.spec):
        raise InvalidRequest(
            f"Invalid value for 'modalities': model '{served.key}' does not speak.",
            code=UNSUPPORTED,
            param="modalities",
        )
    if request.audio is None:
        raise InvalidRequest("Missing required parameter: 'audio'.", code="missing_required_parameter", param="audio")
    if request.stream and request.audio.format != "pcm16":
        raise InvalidRequest(
            "Invalid value for 'audio.format': a stream carries 'pcm16' only.", code=UNSUPPORTED, param="audio.format"
        )
    return FORMATS["pcm" if request.audio.format == "pcm16" else request.audio.format]


def _sampling(request: ChatRequest, served: Served) -> Sampling:
    ceiling = served.spec.max_output_tokens
    param = "max_tokens" if request.max_tokens is not None else "max_completion_tokens"
    max_tokens = request.max_tokens or request.max_completion_tokens or ceiling
    if max_tokens > ceiling:
        raise InvalidRequest(
            f"Invalid value for '{param}': {max_tokens} is above the {ceiling} that model '{served.key}' allows.",
            param=param,
        )
    stop = request.stop
    temperature = served.spec.default_temperature if request.temperature is None else request.temperature
    top_p = served.spec.default_top_p if request.top_p is None else request.top_p
    return Sampling(
        temperature=float(temperature),
        top_p=max(float(top_p), _SMALLEST_TOP_P),
        max_tokens=max_tokens,
        stop=() if stop is None else (stop,) if isinstance(stop, str) else tuple(stop),
        frequency_penalty=float(request.frequency_penalty),
        presence_penalty=float(request.presence_penalty),
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        logit_bias={int(token): float(bias) for token, bias in (request.logit_bias or {}).items()},
    )


def as_seed(seed: int) -> int:
    """Any 64-bit seed as the non-negative number that generators are keyed by."""
    return seed % (1 << SEED_BITS)


def derived_seed(seed: int, index: int) -> int:
    """The seed of the answer number `index`; the first one's is the seed itself."""
    if index == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}/{index}".encode(), digest_size=8).digest()
    return as_seed(int.from_bytes(digest, "big"))
