"""Who lives and what that amounts to: tables over an injected clock."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from omnistage.contracts import EngineStatus, Presence, SpeechAbilities
from omnistage_gateway.dispatch.fleet_table import HOLD_S, PRESENCE_LIMIT_S, FleetTable, common_facts


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def presence(
    instance: str, service: str = "talker", state: Any = "ready", contract: int = 1, **engine: Any
) -> Presence:
    fields: dict[str, Any] = {"engine": "heart", "ready": True, "slots": 4} | engine
    return Presence(
        service=service,
        instance=instance,
        state=state,
        version="0",
        contract=contract,
        pid=1,
        host="h",
        started=0.0,
        engines=() if service == "gateway" else (EngineStatus(**fields),),
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def table(clock: Clock) -> FleetTable:
    return FleetTable(clock, "gw-b")


def test_slots_of_ready_instances_add_up(table: FleetTable) -> None:
    assert table.heard(presence("t1"))
    assert table.heard(presence("t2", slots=3))
    assert not table.heard(presence("t1")), "hearing the same again changes nothing"
    view = table.engine("heart")
    assert (view.instances, view.slots, view.ready) == (2, 7, True)


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"state": "draining"}, "t1: draining"),
        ({"state": "failed"}, "t1: failed"),
        ({"state": "starting", "ready": False, "detail": "loading weights"}, "t1: loading weights"),
        ({"state": "starting", "ready": False}, "t1: starting"),
        ({"slots": 0}, "t1: no slots"),
    ],
)
def test_who_takes_no_work_counts_for_nothing_at_once(table: FleetTable, fields: dict[str, Any], detail: str) -> None:
    table.heard(presence("t1"))
    assert table.heard(presence("t1", **fields))
    view = table.engine("heart")
    assert (view.ready, view.slots, view.detail) == (False, 0, detail)


def test_an_engine_speaks_what_every_ready_instance_of_it_speaks(table: FleetTable) -> None:
    assert table.engine("heart").contract == 0
    assert table.heard(presence("t1", contract=3))
    assert table.heard(presence("t2", contract=2))
    assert table.engine("heart").contract == 2
    assert table.engine("heart").instances == 2, "an instance of another version is as good as any"
    assert table.heard(presence("t3", contract=1, ready=False)) is False
    assert table.engine("heart").contract == 2
    assert table.heard(presence("t2", contract=2, state="draining"))
    assert table.engine("heart").contract == 3


def test_the_silent_are_gone_after_the_limit_and_not_before(table: FleetTable, clock: Clock) -> None:
    table.heard(presence("t1"))
    clock.now += 1
    table.heard(presence("t2"))
    assert table.next_expiry() == 100.0 + PRESENCE_LIMIT_S
    clock.now = 100.0 + PRESENCE_LIMIT_S - 0.01
    assert not table.expire()
    clock.now = 100.0 + PRESENCE_LIMIT_S
    assert table.expire()
    assert table.engine("heart").instances == 1
    clock.now += 1
    assert table.expire()
    assert not table.engine("heart").ready
    assert table.next_expiry() is None


def test_service_time_is_weighted_by_slots_and_ignores_the_unmeasured(table: FleetTable) -> None:
    table.heard(presence("t1", slots=1, service_s=4.0))
    table.heard(presence("t2", slots=3, service_s=2.0))
    table.heard(presence("t3", slots=9, service_s=0.0))
    assert table.engine("heart").service_s == pytest.approx(2.5)


def test_facts_and_voices_hold_for_every_instance(table: FleetTable) -> None:
    table.heard(presence("t1", facts={"speed_min": 0.5, "speed_max": 2.0, "rate": 1.0}, voices=("a", "b")))
    table.heard(presence("t2", facts={"speed_min": 0.7, "speed_max": 3.0}, voices=("b", "c")))
    view = table.engine("heart")
    assert dict(view.facts) == {"speed_min": 0.7, "speed_max": 2.0}
    assert view.voices == ("b",)
    assert common_facts([]) == {}


def test_gateways_share_slots_and_each_knows_its_rank(table: FleetTable, clock: Clock) -> None:
    table.heard(presence("t1", slots=5))
    assert (table.gateways, table.share("heart")) == (1, 5)
    assert table.heard(presence("gw-a", "gateway"))
    assert (table.gateways, table.share("heart")) == (2, 2), "gw-a sorts first and gets the odd slot"
    table.heard(presence("gw-b", "gateway"))
    assert table.gateways == 2, "hearing oneself is no second gateway"
    table.heard(presence("gw-a", "gateway", state="draining"))
    assert (table.gateways, table.share("heart")) == (1, 5)


def test_the_part_follows_what_comes_but_grows_only_when_others_had_time(table: FleetTable, clock: Clock) -> None:
    table.heard(presence("t1", slots=8, service_s=1.0))
    table.heard(presence("gw-a", "gateway"))
    assert table.share("heart") == 4
    assert not table.wants("gw-a", {"heart": {"t": 0.5}})
    assert table.wants("gw-b", {"heart": {"t": 20.0}})
    assert table.share("heart") == 4
    clock.now += HOLD_S + 1.0 + 0.1
    assert table.share("heart") == 7
    assert table.wants("gw-a", {"heart": {"t": 60.0}})
    assert table.share("heart") == 2, "less at once"
    table.heard(presence("gw-a", "gateway", state="draining"))
    assert table.share("heart") == 8


def test_what_every_instance_can_do_is_offered(table: FleetTable) -> None:
    table.heard(presence("t1", voices=("b", "a"), speech=SpeechAbilities(tasks=("base",), accepts=("x", "y"))))
    assert table.engine("heart").speech.accepts == ("x", "y")
    table.heard(presence("t2", voices=("a", "c", "b"), speech=SpeechAbilities(tasks=("base",), accepts=("y",))))
    view = table.engine("heart")
    assert (view.voices, view.speech) == (("b", "a"), SpeechAbilities(tasks=("base",), accepts=("y",)))
    table.heard(presence("t3", voices=("a",)))
    assert table.engine("heart").speech == SpeechAbilities(), "an older instance announces nothing"


@pytest.mark.parametrize(
    ("here", "there", "near"), [("", "x", True), ("x", "x", True), ("x", "y", False), ("x", "", False)]
)
def test_whether_shared_memory_reaches_an_engine(table: FleetTable, here: str, there: str, near: bool) -> None:
    table.heard(msgspec.structs.replace(presence("t1"), locality=there))
    assert table.within_reach("heart", here) is near
    assert table.within_reach("unknown", "x")
