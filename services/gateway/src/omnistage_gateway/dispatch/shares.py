"""Fair shares between tenants: start-time fair queueing.

Source: P. Goyal, H. Vin, H. Cheng, "Start-time Fair Queuing", SIGCOMM 1996. A tenant's next request starts at virtual
time max(V, finish of its last one) and finishes cost / weight later; the least start goes first, and V is the start of
the request that went last. A request's cost is the seconds that it holds its slots, which are only known afterwards:
an estimate is charged when it starts and corrected when it ends.
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

    def start(self, tenant: str) -> float:
        """Virtual time at which the tenant's next request would start."""
        return max(self._now, self._finish.get(tenant, 0.0))

    def charge(self, tenant: str, cost_s: float) -> None:
        """The tenant's next request starts now and is expected to cost this much."""
        self._now = self.start(tenant)
        self._finish[tenant] = self._now + cost_s / self.weight(tenant)

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
