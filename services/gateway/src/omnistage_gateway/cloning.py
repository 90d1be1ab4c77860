"""From what a voice is cloned from to what a talker takes: loaded, decoded, encoded by the codec."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from omnistage.contracts import EncodeReference, Inline, VoiceReference
from omnistage.errors import InvalidRequest, PayloadTooLarge, StageFailed
from omnistage.pipelines.catalogue import REFERENCE
from omnistage.tensors.store import to_bytes
from omnistage_gateway.answer import events_of
from omnistage_gateway.audio.recording import Recording, RecordingLimits, decode_recording
from omnistage_gateway.dispatch.interface import Dispatcher, Plan, VoiceFeatures
from omnistage_gateway.fetching import UrlLoader
from omnistage_gateway.speech_extras import VoiceSource
from omnistage_gateway.voices import StoredEmbedding, VoiceLibrary
from omnistage_gateway.voices.records import recording_of

REF_AUDIO = "ref_audio"

_NOTHING = Inline(data=b"", dtype="int16", shape=(0,))
_AT_ONCE = 2
"""Recordings that are decoded at the same time: each takes a thread and some 10 MB."""


class Cloning:
    """Prepares voices.

    Args:
        dispatcher: runs the encoder.
        urls: loads what a client names by URL.
        voices: those that clients have brought along.
        limits: what a recording must be.
    """

    def __init__(
        self, dispatcher: Dispatcher, urls: UrlLoader, voices: VoiceLibrary, limits: RecordingLimits | None = None
    ) -> None:
        self.limits = limits or RecordingLimits()
        self._dispatcher = dispatcher
        self._urls = urls
        self._voices = voices
        self._decoding = asyncio.Semaphore(_AT_ONCE)

    async def reference(
        self, source: VoiceSource, speech: Plan, request_id: str, *, named: str = "voice"
    ) -> VoiceReference:
        """What a talker clones a voice from.

        Args:
            speech: the plan of the speech, whose model, tenant and deadline this goes by.
            request_id: of the speech.
            named: the field that names a voice that was kept.

        Raises:
            InvalidRequest: the recording cannot be loaded, read or used; names the field.
            OmnistageError: the encoder is busy or failed.
        """
        if source.embedding is not None:
            return VoiceReference(embedding=_inline(np.array(source.embedding, np.float32)))
        if source.stored is not None:
            content = await self._voices.content(source.stored)
            if isinstance(content, StoredEmbedding):
                return VoiceReference(embedding=_inline(np.frombuffer(content.values, "<f4").astype(np.float32)))
            recording, param = recording_of(content), named
        else:
            assert source.audio is not None
            recording, param = await self.decode(await self._load(source.audio), REF_AUDIO), REF_AUDIO
        features = await self._encode(recording, speech, request_id, param)
        return VoiceReference(
            codes=_inline(features.codes) if source.text else None,
            text=source.text,
            embedding=None if features.embedding is None else _inline(features.embedding),
        )

    async def decode(self, data: bytes, param: str) -> Recording:
        """The sound in a client's file, decoded off the event loop.

        Raises:
            InvalidRequest: it cannot be used; names the field.
        """
        async with self._decoding:
            try:
                return await asyncio.to_thread(decode_recording, data, self.limits)
            except InvalidRequest as error:
                raise InvalidRequest(
                    f"Invalid value for '{param}': {error.message}.", code=error.code, param=param
                ) from None

    async def _load(self, text: str) -> bytes:
        """The bytes behind a URL or in base64."""
        if text.startswith("data:") or "://" in text[:16]:
            return (await self._urls.load(text, param=REF_AUDIO)).data
        if len(text) > 4 * (self.limits.max_bytes // 3 + 1):
            error = PayloadTooLarge(f"Invalid value for '{REF_AUDIO}': more than {self.limits.max_bytes} bytes.")
            error.param = REF_AUDIO
            raise error
        try:
            return await asyncio.to_thread(base64.b64decode, text, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequest(
                f"Invalid value for '{REF_AUDIO}': it is neither a URL nor base64.", param=REF_AUDIO
            ) from None

    async def _encode(self, recording: Recording, speech: Plan, request_id: str, param: str) -> VoiceFeatures:
        plan = replace(
            speech,
            pipeline=REFERENCE,
            build=partial(_encode_reference, recording.sample_rate_hz),
            payload=recording.samples,
            streamed=False,
            retry_key=f"{speech.retry_key}-reference" if speech.retry_key else "",
        )
        features: VoiceFeatures | None = None
        try:
            async with self._dispatcher.run(plan, f"{request_id}-ref") as running, events_of(running) as events:
                async for event in events:
                    if isinstance(event, VoiceFeatures):
                        features = event
        except InvalidRequest as error:
            if error.param is None:
                error.param = param
            raise
        if features is None:
            raise StageFailed("The recording was not encoded.", code="no_features", stage="gateway")
        return features


def _encode_reference(rate_hz: int, request_id: str, node: str, route: Mapping[str, str]) -> EncodeReference:
    return EncodeReference(
        request_id=request_id,
        pipeline=REFERENCE.name,
        node=node,
        route=dict(route),
        payload=_NOTHING,
        sample_rate_hz=rate_hz,
    )


def _inline(array: NDArray[np.int32] | NDArray[np.float32]) -> Inline:
    """An array inside the message: what a talker takes of a voice is small."""
    data, dtype, shape = to_bytes(array)
    return Inline(data=bytes(data), dtype=dtype, shape=shape)
