"""How several gateways divide an engine's slots: by what comes to each, fair between keys. Pure policy.

Connections are not spread evenly over gateways (whichever process wakes first takes the next one), so equal parts
would leave slots idle at one while another refuses. Each gateway measures what comes to it and tells the others; from
the same figures all compute the same division. A key gets no more by coming to several gateways, or to one that nobody
else comes to: what counts is its fair share of the engine, divided over the gateways that it comes to.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping

MEMORY_S = 10.0
"""Time constant of the measured rates: long enough that chance does not move slots to and fro."""
MOST_TENANTS = 100
"""Keys of which rates are told; the busiest ones."""
_LEAST_PER_S = 0.01

Wanted = Mapping[str, Mapping[str, float]]
"""Engine -> tenant -> slots that what comes would fill: requests per second times the seconds that each holds one."""


class Demand:
    """What comes to one gateway, as exponentially weighted rates.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rates: dict[tuple[str, str], tuple[float, float]] = {}

    def came(self, engines: Iterable[str], tenant: str) -> None:
        """A request has come, whether it is let in or not."""
        now = self._clock()
        for engine in engines:
            self._rates[engine, tenant] = (self._now(engine, tenant, now) + 1 / MEMORY_S, now)

    def rates(self) -> dict[str, dict[str, float]]:
        """The rates now; what has ceased is forgotten."""
        now = self._clock()
        found: dict[str, dict[str, float]] = {}
        for engine, tenant in list(self._rates):
            rate = self._now(engine, tenant, now)
            if rate < _LEAST_PER_S:
                del self._rates[engine, tenant]
            else:
                found.setdefault(engine, {})[tenant] = rate
        return {engine: _busiest(tenants) for engine, tenants in found.items()}

    def _now(self, engine: str, tenant: str, now: float) -> float:
        rate, since = self._rates.get((engine, tenant), (0.0, now))
        return rate * math.exp((since - now) / MEMORY_S)


def _busiest(tenants: Mapping[str, float]) -> dict[str, float]:
    ordered = sorted(tenants.items(), key=lambda item: -item[1])
    return dict(ordered[:MOST_TENANTS])


def fair(demands: Mapping[str, float], total: float) -> dict[str, float]:
    """Max-min fair parts of a total: nobody gets more than asked for, and who gets less gets as much as anybody."""
    parts: dict[str, float] = {}
    left = total
    ordered = sorted(demands.items(), key=lambda item: item[1])
    for number, (name, demand) in enumerate(ordered):
        parts[name] = min(demand, left / (len(ordered) - number))
        left -= parts[name]
    return parts


def divide(slots: int, wanted: Mapping[str, Mapping[str, float]]) -> dict[str, int]:
    """Slots of an engine for each gateway: what it needs for every key's fair part, and as much of the spare as others.

    Args:
        slots: what there is.
        wanted: gateway -> tenant -> slots that its requests would fill; all gateways, in any order.

    Returns:
        At least one for each, even if the parts then add up to more: the surplus waits in the work queue.
    """
    if slots <= 0:
        return dict.fromkeys(wanted, 0)
    totals: dict[str, float] = {}
    for _, tenants in sorted(wanted.items()):
        for tenant, number in tenants.items():
            totals[tenant] = totals.get(tenant, 0.0) + number
    parts = fair(totals, slots)
    needed = {
        gateway: sum(parts[tenant] * number / totals[tenant] for tenant, number in tenants.items() if number > 0)
        for gateway, tenants in wanted.items()
    }
    spare = max(0.0, slots - math.fsum(needed.values())) / len(wanted)
    return _rounded(slots, {gateway: number + spare for gateway, number in needed.items()})


def _rounded(slots: int, exact: Mapping[str, float]) -> dict[str, int]:
    """Whole slots, the remainder to those who lose most by rounding; equal ones in the order of their names."""
    parts = {gateway: math.floor(part + 1e-9) for gateway, part in exact.items()}
    by_loss = sorted(exact, key=lambda gateway: (round(parts[gateway] - exact[gateway], 6), gateway))
    for gateway in by_loss[: slots - sum(parts.values())]:
        parts[gateway] += 1
    poor = [gateway for gateway, part in parts.items() if part == 0]
    for gateway in sorted(poor):
        richest = max(parts, key=lambda name: (parts[name], name))
        if parts[richest] > 1:
            parts[richest] -= 1
        parts[gateway] = 1
    return parts


class Grant:
    """What one gateway may use of an engine: less at once, more when those who gave it up have had time to.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._parts: deque[tuple[float, float]] = deque()

    def use(self, part: int, slots: int, hold_s: float) -> int:
        """Slots to use now.

        Args:
            part: what the division says now.
            slots: of which number.
            hold_s: how long others may hold on to what is no longer theirs.
        """
        if slots <= 0:
            return 0
        now = self._clock()
        while self._parts and self._parts[0][0] < now - hold_s:
            self._parts.popleft()
        # Only the smallest of what came before matters, so the rest need not be kept.
        while self._parts and self._parts[-1][1] >= part / slots:
            self._parts.pop()
        self._parts.append((now, part / slots))
        return min(part, max(1, round(self._parts[0][1] * slots)))
