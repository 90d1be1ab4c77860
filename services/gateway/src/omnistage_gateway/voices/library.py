"""Voices and consents of tenants: made, found, listed and removed. A tenant sees its own alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from omnistage.errors import InvalidRequest, NotFound
from omnistage.transport import Bus
from omnistage.transport.memory.stores import MemoryKeyValue, MemoryObjects
from omnistage_gateway.voices.names import CONSENT, VOICE, check_free, checked_name, is_id, new_consent_id, voice_id
from omnistage_gateway.voices.records import Consent, Content, StoredVoice, decode_content
from omnistage_gateway.voices.shelf import Shelf

VOICES_BUCKET = "voices"
CONSENTS_BUCKET = "voice_consents"


class VoiceExists(InvalidRequest):
    """The tenant has a voice of that name."""

    code = "voice_exists"
    status = 409


@dataclass(frozen=True)
class VoiceLimits:
    """How many of each a tenant may keep."""

    voices: int = 100
    consents: int = 100


class VoiceLibrary:
    """What clients have brought along.

    Args:
        voices, consents: where they lie.
        limits: bounds.
        clock: unix time in seconds.
    """

    def __init__(
        self,
        voices: Shelf[StoredVoice],
        consents: Shelf[Consent],
        limits: VoiceLimits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._voices = voices
        self._consents = consents
        self._limits = limits or VoiceLimits()
        self._clock = clock

    @classmethod
    async def open(cls, bus: Bus, limits: VoiceLimits | None = None) -> VoiceLibrary:
        """On the buckets of a bus. Raises BusUnavailable."""
        return cls(
            Shelf(StoredVoice, await bus.key_value(VOICES_BUCKET), await bus.object_store(VOICES_BUCKET)),
            Shelf(Consent, await bus.key_value(CONSENTS_BUCKET), await bus.object_store(CONSENTS_BUCKET)),
            limits,
        )

    @classmethod
    def in_memory(cls, limits: VoiceLimits | None = None) -> VoiceLibrary:
        """In this process alone, for as long as it lives."""
        return cls(
            Shelf(StoredVoice, MemoryKeyValue(), MemoryObjects()),
            Shelf(Consent, MemoryKeyValue(), MemoryObjects()),
            limits,
        )

    async def add_voice(
        self, tenant: str, voice: StoredVoice, content: Content | None, built_in: frozenset[str]
    ) -> StoredVoice:
        """Keep a voice under its name.

        Args:
            voice: its `id` and `created_at` are set here.
            content: recording or embedding; None for a voice that is described.
            built_in: case-folded names that are taken.

        Raises:
            InvalidRequest: the name is malformed, reserved or taken, there is no such consent, or there are too many.
        """
        name = checked_name(voice.name)
        check_free(name, built_in)
        if voice.consent.startswith(CONSENT) and await self._consents.get(tenant, voice.consent) is None:
            raise InvalidRequest(
                "Invalid value for 'consent': there is no such consent.", code="consent_not_found", param="consent"
            )
        record = msgspec.structs.replace(
            voice, id=voice_id(tenant, name), name=name, created_at=int(self._clock()), object=""
        )
        packed = None if content is None else msgspec.msgpack.encode(content)
        kept = await self._voices.add(tenant, record, packed)
        if kept is None:
            raise VoiceExists(
                f"Invalid value for 'name': you have a voice {name!r} already; delete it first.", param="name"
            )
        if len(await self._voices.all(tenant)) > self._limits.voices:
            await self._voices.remove(tenant, kept.id)
            raise _too_many("voices", self._limits.voices)
        return kept

    async def find_voice(self, tenant: str, name_or_id: str) -> StoredVoice | None:
        """A tenant's voice by its id or, in whatever case, its name."""
        wanted = name_or_id if is_id(name_or_id) else voice_id(tenant, name_or_id)
        return await self._voices.get(tenant, wanted) if wanted.startswith(VOICE) else None

    async def voices(self, tenant: str) -> list[StoredVoice]:
        """A tenant's voices, oldest first."""
        return await self._voices.all(tenant)

    async def content(self, voice: StoredVoice) -> Content:
        """What a voice was made from.

        Raises:
            NotFound: it was removed meanwhile.
        """
        data = await self._voices.content(voice)
        if data is None:
            raise no_voice(voice.name)
        return decode_content(data)

    async def remove_voice(self, tenant: str, name_or_id: str) -> StoredVoice:
        """Remove a voice and all that it was made from.

        Raises:
            NotFound: there is none.
        """
        voice = await self.find_voice(tenant, name_or_id)
        if voice is None or not await self._voices.remove(tenant, voice.id):
            raise no_voice(name_or_id)
        return voice

    async def add_consent(self, tenant: str, name: str, language: str, recording: bytes) -> Consent:
        """Keep a consent as it was sent.

        Raises:
            InvalidRequest: the name is malformed, or there are too many.
        """
        consent = Consent(
            id=new_consent_id(), name=checked_name(name), created_at=int(self._clock()), language=language
        )
        kept = await self._consents.add(tenant, consent, recording)
        assert kept is not None, "ids are drawn at random"
        if len(await self._consents.all(tenant)) > self._limits.consents:
            await self._consents.remove(tenant, kept.id)
            raise _too_many("consents", self._limits.consents)
        return kept

    async def consent(self, tenant: str, consent_id: str) -> Consent:
        """A tenant's consent. Raises NotFound."""
        return _found(await self._consents.get(tenant, consent_id))

    async def consents(self, tenant: str) -> list[Consent]:
        """A tenant's consents, oldest first."""
        return await self._consents.all(tenant)

    async def rename_consent(self, tenant: str, consent_id: str, name: str) -> Consent:
        """Call a consent otherwise. Raises NotFound, or InvalidRequest for a malformed name."""
        return _found(await self._consents.rename(tenant, consent_id, checked_name(name)))

    async def remove_consent(self, tenant: str, consent_id: str) -> None:
        """Remove a consent and its recording; voices that were made with it stay. Raises NotFound."""
        if not await self._consents.remove(tenant, consent_id):
            raise _found_none()


def no_voice(name: str) -> NotFound:
    """There is no such voice."""
    return NotFound(f"You have no voice {name[:100]!r}.", code="voice_not_found", param="voice")


def _found(consent: Consent | None) -> Consent:
    if consent is None:
        raise _found_none()
    return consent


def _found_none() -> NotFound:
    return NotFound("There is no such consent.", code="consent_not_found", param="consent_id")


def _too_many(what: str, limit: int) -> InvalidRequest:
    return InvalidRequest(f"You have {limit} {what}, which is the limit; delete one first.", code=f"too_many_{what}")
