"""What travels in the headers of work and records: everything about a request that is not its content."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from omnistage.contracts import CONTRACT_VERSION

_DEADLINE, _TENANT, _PRIORITY, _CONTRACT = "omni-deadline", "omni-tenant", "omni-priority", "omni-contract"
_TRACE = ("traceparent", "tracestate")


@dataclass(frozen=True)
class Meta:
    """Facts of a request.

    Attributes:
        deadline: unix time in seconds after which nobody waits for it.
        tenant: whose share it counts to.
        priority: "interactive" or "batch".
        contract: contract version that the reader needs.
        trace: W3C trace context.
    """

    deadline: float
    tenant: str = "anonymous"
    priority: str = "interactive"
    contract: int = CONTRACT_VERSION
    trace: Mapping[str, str] = field(default_factory=dict)

    @property
    def remaining_s(self) -> float:
        """Seconds to the deadline; negative when it has passed."""
        return self.deadline - time.time()

    def to_headers(self) -> dict[str, str]:
        return {
            _DEADLINE: f"{self.deadline:.3f}",
            _TENANT: self.tenant,
            _PRIORITY: self.priority,
            _CONTRACT: str(self.contract),
            **self.trace,
        }

    @classmethod
    def from_headers(cls, headers: Mapping[str, str], default_deadline_s: float = 300.0) -> Meta:
        """Read headers; whoever left one out gets the default, a malformed number raises ValueError."""
        return cls(
            deadline=float(headers.get(_DEADLINE) or time.time() + default_deadline_s),
            tenant=headers.get(_TENANT, "anonymous"),
            priority=headers.get(_PRIORITY, "interactive"),
            contract=int(headers.get(_CONTRACT) or CONTRACT_VERSION),
            trace={name: headers[name] for name in _TRACE if name in headers},
        )
