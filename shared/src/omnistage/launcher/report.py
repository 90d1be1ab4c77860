"""What runs, as `status` shows it and `status --json` prints it: each process, with what it says of itself."""

from __future__ import annotations

import time
from typing import Any

from omnistage.contracts import EngineStatus, Presence
from omnistage.launcher.fleet import Fleet
from omnistage.launcher.supervisor import Slot


def report(slot: Slot, fleet: Fleet | None) -> dict[str, Any]:
    """One process.

    Keys: name, service, instance, pid, metrics_port, state, detail, version, contract, uptime_s, restarts, last_exit,
    engines, slots, queue, running (ids of requests in flight). State is the service's own word (starting, ready,
    draining, failed) where it has spoken, else the supervisor's (starting, waiting, stopping, failed).
    """
    presence = fleet.get(slot.instance) if fleet is not None and slot.pid is not None else None
    engines = presence.engines if presence else ()
    return {
        "name": slot.name,
        "service": slot.service,
        "instance": slot.instance,
        "pid": slot.pid,
        "metrics_port": slot.metrics_port,
        "state": _state(slot, presence),
        "detail": _detail(slot, presence),
        "version": presence.version if presence else None,
        "contract": f"1.{presence.contract}" if presence else None,
        "uptime_s": round(time.time() - slot.started, 1) if slot.pid else 0.0,
        "restarts": slot.restarts,
        "last_exit": slot.last_exit,
        "engines": [_engine(engine) for engine in engines],
        "slots": sum(engine.slots for engine in engines),
        "queue": sum(engine.queue for engine in engines),
        "running": _running(presence),
    }


def _engine(engine: EngineStatus) -> dict[str, Any]:
    return {
        "engine": engine.engine,
        "ready": engine.ready,
        "detail": engine.detail,
        "slots": engine.slots,
        "running": list(engine.running),
        "queue": engine.queue,
        "service_s": engine.service_s,
    }


def _state(slot: Slot, presence: Presence | None) -> str:
    if slot.state != "running":
        return slot.state
    if not slot.speaks:
        return "ready" if slot.served else "starting"
    return presence.state if presence is not None else "starting"


def _detail(slot: Slot, presence: Presence | None) -> str:
    if slot.state in ("failed", "waiting"):
        return slot.reason
    if presence is None:
        return ""
    loading = [f"{engine.engine}: {engine.detail or 'loading'}" for engine in presence.engines if not engine.ready]
    return ", ".join(loading)


def _running(presence: Presence | None) -> list[str]:
    if presence is None:
        return []
    ids = [*presence.running, *(request for engine in presence.engines for request in engine.running)]
    return list(dict.fromkeys(ids))
