"""Fair shares between tenants: start-time fair queueing.

Source: P. Goyal, H. Vin, H. Cheng, "Start-time Fair Queuing", SIGCOMM 1996. A tenant's next request starts at the
virtual time at which its last one finished, but not before V if nothing of it waited, and finishes cost / weight later;
the least start goes first, and V is the latest start of those that went. A request's cost is the seconds that it holds
its slots, which are only known afterwards: an estimate is charged when it starts and corrected when it ends. While a
tenant has requests waiting, its time may therefore fall behind V: that is what it was overcharged.
"""

from __future__ import annotations

from collections.abc import Mapping


class Shares:
    """Virtual time of tenants.

    Args:
        weights: tenant -> its weight; others weigh 1.
    """

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        self._weights = dict(weights or {})
        self._now = 0.0
        self._finish: dict[str, float] = {}

    def weight(self, tenant: str) -> float:
        return self._weights.get(tenant, 1.0)

    def arrive(self, tenant: str) -> None:
        """The tenant had nothing waiting and has now: what it did not use meanwhile is not owed to it."""
        self._finish[tenant] = max(self._now, self._finish.get(tenant, 0.0))

    def start(self, tenant: str) -> float:
        """Virtual time at which the tenant's next request would start."""
        return self._finish.get(tenant, self._now)

    def charge(self, tenant: str, cost_s: float) -> None:
        """The tenant's next request starts now and is expected to cost this much."""
        start = self.start(tenant)
        self._now = max(self._now, start)
        self._finish[tenant] = start + cost_s / self.weight(tenant)

    def correct(self, tenant: str, estimate_s: float, cost_s: float) -> None:
        """A request of the tenant that was charged `estimate_s` cost `cost_s`."""
        if tenant in self._finish:
            self._finish[tenant] += (cost_s - estimate_s) / self.weight(tenant)

    def settle(self, active: Mapping[str, object], busy: bool) -> None:
        """Forget tenants that are not active and have no debt, or whose debt harms nobody as no one waits."""
        for tenant in [name for name in self._finish if name not in active]:
            if not busy or self._finish[tenant] <= self._now:
                del self._finish[tenant]

    def __len__(self) -> int:
        return len(self._finish)
