"""Which instance holds which claims, written down where others find it when that instance is dead."""

from __future__ import annotations

from omnistage.observability import get_logger
from omnistage.runtime.patience import patiently
from omnistage.transport import Bus, Claim, KeyValue

_log = get_logger(__name__)

CLAIMS_BUCKET = "claims"
"""Keys "<instance>.<request_id>.<engine>", values the claims' tokens (`omnistage.transport.Claim.token`)."""

CLAIM_TTL_S = 2 * 3600.0


class ClaimBook:
    """This instance's entries. Nobody waits for them, so they wait for a broker that is away."""

    def __init__(self, bucket: KeyValue, instance: str) -> None:
        self._bucket = bucket
        self._instance = instance

    async def enter(self, request_id: str, engine: str, claim: Claim) -> None:
        """Write a claim down."""
        await patiently(lambda: self._bucket.put(self._key(request_id, engine), claim.token.encode()))

    async def strike(self, request_id: str, engine: str) -> None:
        """The claim is over."""
        await patiently(lambda: self._bucket.delete(self._key(request_id, engine)))

    def _key(self, request_id: str, engine: str) -> str:
        return f"{self._instance}.{request_id}.{engine}"


async def hand_back(bus: Bus, instance: str) -> int:
    """Give back what a dead instance held, so that others have it at once; returns how many claims.

    Idempotent. A claim that was over already is given back in vain, which harms nobody: its item is gone. One that
    another instance has taken since is left to that: the broker would take it away from there.
    """
    bucket = await bus.key_value(CLAIMS_BUCKET, ttl_s=CLAIM_TTL_S)
    keys = await bucket.keys()
    given = 0
    for key in [key for key in keys if key.startswith(f"{instance}.")]:
        entry = await bucket.get(key)
        if entry is None:
            continue
        others = [other for other in keys if other != key and _work_of(other) == _work_of(key)]
        later = [found for other in others if (found := await bucket.get(other)) is not None and found[1] > entry[1]]
        if not later:
            await bus.give_back(entry[0].decode())
            given += 1
        await bucket.delete(key)
    if given:
        _log.info("claims handed back", dead=instance, claims=given)
    return given


def _work_of(key: str) -> str:
    """Request and engine of an entry."""
    return key.partition(".")[2]
