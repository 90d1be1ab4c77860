"""The codec's engine: the decoder, and the encoder of recordings if there is one."""

from __future__ import annotations

from omnistage.errors import InvalidRequest
from omnistage_codec.engine.engine import DecodeEngine
from omnistage_codec.engine.references import ReferenceEngine


class CodecEngine:
    """What handlers find as their engine.

    Attributes:
        decoder: frames to sound.
    """

    def __init__(self, decoder: DecodeEngine, references: ReferenceEngine | None = None) -> None:
        self.decoder = decoder
        self._references = references

    @property
    def references(self) -> ReferenceEngine:
        """Recordings to codes and embeddings. Raises InvalidRequest if this engine has no encoder."""
        if self._references is None:
            raise InvalidRequest("this model clones no voices", code="unsupported_value")
        return self._references

    @property
    def stalled_s(self) -> float:
        """Seconds by which a run of a model exceeds what it may take; 0 while all is well."""
        encoding_s = 0.0 if self._references is None else self._references.stalled_s
        return max(self.decoder.stalled_s, encoding_s)

    async def warm(self) -> None:
        """Run everything once, so that the first request pays for no first use."""
        await self.decoder.warm()
        if self._references is not None:
            await self._references.warm()

    async def close(self) -> None:
        """Wait for runs of the models and end their threads."""
        await self.decoder.close()
        if self._references is not None:
            await self._references.close()
