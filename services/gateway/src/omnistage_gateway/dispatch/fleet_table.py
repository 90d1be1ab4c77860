"""Who lives, as told by presences: pure bookkeeping, the clock is passed in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from omnistage.contracts import EngineStatus, Presence, SpeechAbilities
from omnistage.pipelines import GATEWAY
from omnistage_gateway.dispatch.credits import Grant, Wanted, divide

HOLD_S = 1.0
"""Gateways learn of a new division within so many seconds of one another."""
PRESENCE_LIMIT_S = 3.5
"""An instance that was not heard of for this long is gone: presences come every second, so three were missed."""


@dataclass
class _Instance:
    presence: Presence
    heard: float


@dataclass(frozen=True)
class EngineView:
    """What all ready instances of an engine amount to.

    Attributes:
        instances: how many are ready.
        slots: their slots together.
        service_s: mean seconds that a request holds a slot, weighted by slots; 0 if nothing was measured yet.
        facts: gauges that every one of them announces; see `common_facts`.
        voices: voices that every one of them speaks with, in the order of one that announces them.
        speech: what every one of them can be asked for.
        media: what every one of them reads beside text.
        contract: the contract version that every one of them speaks; 0 while none is ready.
        detail: while none is ready, what the instances that load it are doing.
    """

    instances: int = 0
    slots: int = 0
    service_s: float = 0.0
    facts: Mapping[str, float] = field(default_factory=dict)
    voices: tuple[str, ...] = ()
    speech: SpeechAbilities = field(default_factory=SpeechAbilities)
    media: tuple[str, ...] = ()
    contract: int = 0
    detail: str = ""

    @property
    def ready(self) -> bool:
        return self.slots > 0


def common_facts(all_facts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Gauges that hold for whichever instance answers: those that all announce, at their most cautious value.

    Of "..._min" the largest counts, of anything else the smallest, so that ranges intersect.
    """
    maps = list(all_facts)
    if not maps:
        return {}
    shared = set.intersection(*(set(facts) for facts in maps))
    return {name: (max if name.endswith("_min") else min)(facts[name] for facts in maps) for name in sorted(shared)}


class FleetTable:
    """Instances by what they last said.

    Args:
        clock: monotonic seconds.
        gateway: this gateway's own instance name; it counts as ready whether or not its presence was heard.
    """

    def __init__(self, clock: Callable[[], float], gateway: str) -> None:
        self._clock = clock
        self._gateway = gateway
        self._instances: dict[str, _Instance] = {}
        self._engines: dict[str, EngineView] = {}
        self._gateways: tuple[str, ...] = (gateway,)
        self._wanted: dict[str, Wanted] = {}
        self._parts: dict[str, int] = {}
        self._grants: dict[str, Grant] = {}

    def heard(self, presence: Presence) -> bool:
        """Take a presence in; True if it changes what is ready, how much of it there is, or what it announces."""
        self._instances[presence.instance] = _Instance(presence, self._clock())
        return self._derive()

    def expire(self) -> bool:
        """Drop instances that were silent for too long; True if that changes anything."""
        limit = self._clock() - PRESENCE_LIMIT_S
        gone = [name for name, instance in self._instances.items() if instance.heard <= limit]
        for name in gone:
            del self._instances[name]
        return bool(gone) and self._derive()

    def next_expiry(self) -> float | None:
        """When the next instance will be gone unless it is heard of; None if there is none."""
        if not self._instances:
            return None
        return min(instance.heard for instance in self._instances.values()) + PRESENCE_LIMIT_S

    def engine(self, key: str) -> EngineView:
        """What there is of an engine; an empty view if nobody has it."""
        return self._engines.get(key, EngineView())

    def share(self, key: str) -> int:
        """Slots of an engine that this gateway may fill."""
        view = self.engine(key)
        if len(self._gateways) == 1:
            return view.slots
        grant = self._grants.setdefault(key, Grant(self._clock))
        return grant.use(self._parts.get(key, 0), view.slots, HOLD_S + view.service_s)

    def wants(self, gateway: str, wanted: Wanted) -> bool:
        """What a gateway wants, this one or another; True if that changes how many slots are this one's."""
        self._wanted[gateway] = wanted
        before = dict(self._parts)
        self._divide()
        return self._parts != before

    def _divide(self) -> None:
        """Compute this gateway's part of every engine."""
        self._wanted = {name: wanted for name, wanted in self._wanted.items() if name in self._gateways}
        self._parts = {
            key: divide(view.slots, {name: self._wanted.get(name, {}).get(key, {}) for name in self._gateways})[
                self._gateway
            ]
            for key, view in self._engines.items()
        }

    @property
    def gateways(self) -> int:
        """Ready gateways, this one included."""
        return len(self._gateways)

    def within_reach(self, engine: str, locality: str) -> bool:
        """Whether every instance that has an engine reaches the shared memory of that locality; yes if none is known.

        Without a locality there is one process alone.
        """
        found = [p for p in self.presences if any(status.engine == engine for status in p.engines)]
        return not locality or all(presence.locality == locality for presence in found)

    @property
    def presences(self) -> tuple[Presence, ...]:
        """The last word of every instance that lives."""
        return tuple(instance.presence for instance in self._instances.values())

    def _derive(self) -> bool:
        engines = self._derive_engines()
        others = {p.instance for p in self.presences if p.service == GATEWAY and p.state == "ready"}
        gateways = tuple(sorted(others | {self._gateway}))
        changed = (engines, gateways) != (self._engines, self._gateways)
        if gateways != self._gateways:
            self._grants.clear()
        self._engines, self._gateways = engines, gateways
        self._divide()
        return changed

    def _derive_engines(self) -> dict[str, EngineView]:
        ready: dict[str, list[tuple[EngineStatus, int]]] = {}
        details: dict[str, list[str]] = {}
        for presence in self.presences:
            for status in presence.engines:
                detail = _why_not(presence, status)
                if detail is None:
                    ready.setdefault(status.engine, []).append((status, presence.contract))
                else:
                    details.setdefault(status.engine, []).append(f"{presence.instance}: {detail}")
        loading = {key: EngineView(detail="; ".join(sorted(lines))) for key, lines in details.items()}
        return loading | {
            key: _combine([status for status, _ in found], min(contract for _, contract in found))
            for key, found in ready.items()
        }


def _why_not(presence: Presence, status: EngineStatus) -> str | None:
    """Why an instance takes no new work of ours for this engine; None if it does."""
    if presence.state in ("draining", "failed"):
        return presence.state
    if not status.ready:
        return status.detail or presence.state
    if status.slots < 1:
        return "no slots"
    return None


def _combine(statuses: list[EngineStatus], contract: int) -> EngineView:
    measured = [(status.service_s, status.slots) for status in statuses if status.service_s > 0]
    weight = sum(slots for _, slots in measured)
    speech = [status.speech or SpeechAbilities() for status in statuses]
    return EngineView(
        instances=len(statuses),
        slots=sum(status.slots for status in statuses),
        service_s=sum(seconds * slots for seconds, slots in measured) / weight if weight else 0.0,
        facts=common_facts(status.facts for status in statuses),
        voices=_common([status.voices for status in statuses]),
        speech=SpeechAbilities(
            tasks=_common([each.tasks for each in speech]),
            languages=_common([each.languages for each in speech]),
            accepts=_common([each.accepts for each in speech]),
        ),
        media=_common([status.media for status in statuses]),
        contract=contract,
    )


def _common(lists: list[tuple[str, ...]]) -> tuple[str, ...]:
    """What stands in every list, in the order of the first."""
    return tuple(name for name in dict.fromkeys(lists[0]) if all(name in names for names in lists[1:]))
