"""What travels in the headers of work and records: everything about a request that is not its content."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from omnistage.contracts import FIRST_VERSION
from omnistage.urgency import Reading

_DEADLINE, _TENANT, _PRIORITY, _CONTRACT = "omni-deadline", "omni-tenant", "omni-priority", "omni-contract"
_GATEWAY, _STREAMED = "omni-gateway", "omni-streamed"
_TRACE = ("traceparent", "tracestate")


DEADLINE_MAX_S = 2 * 3600.0
"""A deadline further away counts as this far: nothing that is kept for a request is kept longer."""

_DAY_S = 86_400.0

SENT_HEADER = "omni-sent"
"""Unix time in seconds at which a message was published; for hop and queue times."""


def sent_now() -> dict[str, str]:
    """The header that says when a message left."""
    return {SENT_HEADER: f"{time.time():.6f}"}


def seconds_since_sent(headers: Mapping[str, str]) -> float | None:
    """How long ago a message left, by this host's clock; None if it does not say, or nothing that can be."""
    try:
        seconds = time.time() - float(headers[SENT_HEADER])
    except (KeyError, ValueError):
        return None
    return max(0.0, seconds) if abs(seconds) < _DAY_S else None


@dataclass(frozen=True)
class Meta:
    """Facts of a request.

    Attributes:
        deadline: unix time in seconds after which nobody waits for it.
        tenant: whose share it counts to.
        priority: "interactive" or "batch".
        contract: contract version that everybody on its way needs.
        gateway: instance of the gateway that waits for the answer; empty if nobody does (jobs).
        streamed: whether the client gets the answer while it is made; else all of it at its end.
        trace: W3C trace context.
    """

    deadline: float
    tenant: str = "anonymous"
    priority: str = "interactive"
    contract: int = FIRST_VERSION
    gateway: str = ""
    streamed: bool = True
    trace: Mapping[str, str] = field(default_factory=dict)

    @property
    def remaining_s(self) -> float:
        """Seconds to the deadline; negative when it has passed."""
        return self.deadline - time.time()

    @property
    def reading(self) -> Reading:
        """How the client takes the answer."""
        if self.priority == "batch":
            return "batch"
        return "stream" if self.streamed else "whole"

    def to_headers(self) -> dict[str, str]:
        return {
            _DEADLINE: f"{self.deadline:.3f}",
            _TENANT: self.tenant,
            _PRIORITY: self.priority,
            _CONTRACT: str(self.contract),
            **({_GATEWAY: self.gateway} if self.gateway else {}),
            **({} if self.streamed else {_STREAMED: "0"}),
            **self.trace,
        }

    @classmethod
    def from_headers(cls, headers: Mapping[str, str], default_deadline_s: float = 300.0) -> Meta:
        """Read headers; whoever left one out gets the default, a malformed or absurd number raises ValueError."""
        now = time.time()
        deadline = float(headers.get(_DEADLINE) or now + default_deadline_s)
        if not math.isfinite(deadline):
            raise ValueError("a deadline that is no time")
        return cls(
            deadline=min(deadline, now + DEADLINE_MAX_S),
            tenant=headers.get(_TENANT, "anonymous"),
            priority=headers.get(_PRIORITY, "interactive"),
            contract=int(headers.get(_CONTRACT) or FIRST_VERSION),
            gateway=headers.get(_GATEWAY, ""),
            streamed=headers.get(_STREAMED) != "0",
            trace={name: headers[name] for name in _TRACE if name in headers},
        )
