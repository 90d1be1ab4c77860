"""Everything that endpoints need, handed to the app at its creation."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Request

from omnistage.config import ModelsFile
from omnistage.observability import Metrics
from omnistage_gateway.audio import EncoderPool
from omnistage_gateway.cloning import Cloning
from omnistage_gateway.dispatch.interface import Dispatcher
from omnistage_gateway.fetching import UrlLoader
from omnistage_gateway.limits import Limits
from omnistage_gateway.transcripts import Transcripts
from omnistage_gateway.voices import VoiceLibrary


@dataclass(frozen=True)
class Gateway:
    """The gateway as its endpoints see it.

    Attributes:
        urls: loads what a request names by URL.
        voices: those that clients have brought along.
        cloning: prepares them, and recordings.
        created: when it started, in unix time.
        version: of the gateway's distribution.
    """

    dispatcher: Dispatcher
    models: ModelsFile
    limits: Limits
    transcripts: Transcripts
    encoders: EncoderPool
    metrics: Metrics
    urls: UrlLoader
    voices: VoiceLibrary
    cloning: Cloning
    created: int
    version: str


def gateway_of(request: Request) -> Gateway:
    """The gateway that a request has come to."""
    gateway = request.app.state.gateway
    assert isinstance(gateway, Gateway)
    return gateway
