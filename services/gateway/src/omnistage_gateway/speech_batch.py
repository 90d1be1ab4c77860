"""Answering a batch of speech requests: all side by side, each with its own result or error."""

from __future__ import annotations

import base64
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from omnistage.contracts import FinishReason
from omnistage.errors import InvalidRequest, OmnistageError
from omnistage.runtime.tasks import together
from omnistage_gateway.answer import Sender, to_json
from omnistage_gateway.context import Gateway
from omnistage_gateway.problems import UNSUPPORTED, error_body, from_validation, retry_after
from omnistage_gateway.schemas.speech import SpeechBatch, SpeechRequest
from omnistage_gateway.served import find_model
from omnistage_gateway.speech_answer import run_speech
from omnistage_gateway.speech_request import checked_job
from omnistage_gateway.usage import speech_usage

_STREAMS = ("stream", "stream_format")
_ITEM_ONLY = ("input",)


@dataclass(frozen=True)
class BatchContext:
    """Whose batch it is.

    Attributes:
        request_id: of the batch; each item's begins with it.
        tenant, deadline_s, retry_key: as for one request.
    """

    request_id: str
    tenant: str
    deadline_s: float | None
    retry_key: str


def check_batch(batch: SpeechBatch) -> None:
    """Refuse what no speech request has, and streams.

    Raises:
        InvalidRequest: names the field.
    """
    defaults = batch.model_extra or {}
    for where, fields in (("", defaults), *((f"items.[{index}].", item) for index, item in enumerate(batch.items))):
        for name in fields:
            param = f"{where}{name}"[:200]
            if name not in SpeechRequest.model_fields or (not where and name in _ITEM_ONLY):
                raise InvalidRequest(f"Unknown parameter: '{param}'.", code="unknown_parameter", param=param)
            if name in _STREAMS:
                raise InvalidRequest(
                    f"Invalid value for '{param}': a batch is answered when all of it is done.",
                    code=UNSUPPORTED,
                    param=param,
                )


class _Kept:
    """All bytes of one item."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.duration_s = 0.0
        self.reason: FinishReason | None = None

    async def begin(self) -> None:
        """Nothing is sent before the end."""

    async def audio(self, data: bytes) -> None:
        self.data += data

    async def done(self, duration_s: float, reason: FinishReason | None) -> None:
        self.duration_s, self.reason = duration_s, reason


async def speak_all(gateway: Gateway, batch: SpeechBatch, context: BatchContext, sender: Sender) -> None:
    """Run all items and send their results, in their order."""
    defaults = batch.model_extra or {}
    results = await together(
        *(_result(gateway, {**defaults, **item}, index, context) for index, item in enumerate(batch.items))
    )
    failed = sum(result["status"] == "error" for result in results)
    body = {
        "id": f"speech-batch-{context.request_id}",
        "object": "audio.speech.batch",
        "results": results,
        "total": len(results),
        "succeeded": len(results) - failed,
        "failed": failed,
    }
    await sender.whole("application/json", to_json(body))


async def _result(gateway: Gateway, fields: dict[str, Any], index: int, context: BatchContext) -> dict[str, Any]:
    try:
        return {"index": index, "status": "success", **await _spoken(gateway, fields, index, context), "error": None}
    except OmnistageError as error:
        return {"index": index, "status": "error", **dict.fromkeys(_FIELDS), "error": _error(error)}


_FIELDS = ("model", "audio_data", "media_type", "finish_reason", "usage")


def _error(error: OmnistageError) -> dict[str, Any]:
    """The error of an item. An answer by itself says in a header when to come back; an item has none."""
    detail: dict[str, Any] = error_body(error)["error"]
    if error.retry_after_s is not None:
        detail["retry_after"] = retry_after(error.retry_after_s)
    return detail


async def _spoken(gateway: Gateway, fields: dict[str, Any], index: int, context: BatchContext) -> dict[str, Any]:
    """What an item gives; see `_FIELDS`."""
    try:
        request = SpeechRequest.model_validate({**fields, "stream": False})
    except ValidationError as error:
        raise from_validation(error, fields) from None
    served = find_model(gateway.models, request.model)
    job = await checked_job(
        gateway,
        request,
        served,
        tenant=context.tenant,
        deadline_s=context.deadline_s,
        retry_key=f"{context.retry_key}-{index}" if context.retry_key else "",
    )
    kept = _Kept()
    job = replace(job, plan=replace(job.plan, priority="batch"))
    await run_speech(gateway, job, f"{context.request_id}-{index}", kept)
    return {
        "model": served.key,
        "audio_data": base64.b64encode(kept.data).decode("ascii"),
        "media_type": job.audio_format.media_type,
        "finish_reason": kept.reason,
        "usage": speech_usage(job.input_chars, kept.duration_s),
    }
