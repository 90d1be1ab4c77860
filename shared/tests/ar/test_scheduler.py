"""The policy: what runs in a step, who waits, who gives way; and that no order of events changes a result."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnistage.ar.blocks import BlockManager
from omnistage.ar.scheduler import Batch, Scheduler, SchedulerConfig
from omnistage.ar.sequence import Sequence, SequenceState

Make = Callable[..., Scheduler]
Expected = Callable[[tuple[Hashable, ...], int], list[Hashable]]


def sequence(name: str, length: int, *, new: int = 4, due: float = math.inf, **more: Any) -> Sequence:
    tokens: list[Hashable] = [f"{name}{index}" for index in range(length)]
    return Sequence(name, tokens, length, new, due=due, **more)


def shape(batch: Batch) -> list[tuple[str, int, int, bool]]:
    return [(row.sequence.request_id, row.start, row.count, row.emits) for row in batch.rows]


def advance(scheduler: Scheduler) -> list[tuple[str, int, int, bool]]:
    """One step whose every token is "x"."""
    batch = scheduler.schedule()
    scheduler.commit(batch, ["x"] * len(batch.emitting))
    return shape(batch)


def test_prompts_are_chunked_by_the_budget_and_decodes_come_first(make_scheduler: Make) -> None:
    scheduler = make_scheduler(max_batch_tokens=6, max_chunk_tokens=3)
    scheduler.add(sequence("a", 5))
    scheduler.add(sequence("b", 6))
    assert advance(scheduler) == [("a", 0, 5, True), ("b", 0, 1, False)]
    assert advance(scheduler) == [("a", 5, 1, True), ("b", 1, 3, False)]
    assert advance(scheduler) == [("a", 6, 1, True), ("b", 4, 2, True)]
    assert advance(scheduler) == [("a", 7, 1, True), ("b", 6, 1, True)]


@pytest.mark.parametrize(
    ("dues", "order"),
    [((3.0, 1.0, 2.0), "bca"), ((math.inf, math.inf, math.inf), "abc"), ((math.inf, math.inf, 9.0), "cab")],
)
def test_the_earliest_due_is_admitted_and_served_first(
    make_scheduler: Make, dues: tuple[float, ...], order: str
) -> None:
    scheduler = make_scheduler(max_batch_tokens=4)
    for name, due in zip("abc", dues, strict=True):
        scheduler.add(sequence(name, 4, due=due))
    seen = [row[0] for _ in range(3) for row in advance(scheduler) if row[1] == 0]
    assert "".join(seen) == order


def test_slots_bound_the_running(make_scheduler: Make) -> None:
    scheduler = make_scheduler(max_running=2)
    for name in "abc":
        scheduler.add(sequence(name, 2, new=1))
    assert [row[0] for row in advance(scheduler)] == ["a", "b"]
    assert [row[0] for row in advance(scheduler)] == ["c"]


def test_admission_waits_for_blocks_and_none_passes_a_big_prompt(make_scheduler: Make) -> None:
    scheduler = make_scheduler(6, prefix_cache=False)
    scheduler.add(sequence("a", 12))
    scheduler.add(sequence("big", 16))
    scheduler.add(sequence("small", 2))
    assert [row[0] for row in advance(scheduler)] == ["a"]
    assert [s.request_id for s in scheduler.waiting] == ["big", "small"]
    scheduler.remove(scheduler.running[0])
    assert [row[0] for row in advance(scheduler)] == ["big", "small"]


def test_the_last_in_order_is_preempted_and_starts_over(make_scheduler: Make) -> None:
    scheduler = make_scheduler(4, prefix_cache=False)
    first, second = sequence("a", 6, new=9), sequence("b", 3, new=9)
    scheduler.add(first)
    scheduler.add(second)
    for _ in range(2):
        advance(scheduler)
    assert scheduler.running == [first, second]
    while len(scheduler.running) == 2:
        advance(scheduler)
    assert scheduler.num_preemptions == 1
    assert (second.num_computed, second.block_table, second.state) == (0, [], SequenceState.WAITING)
    assert scheduler.running == [first]
    kept = len(second.tokens)
    while second not in scheduler.running:
        assert advance(scheduler)
    assert len(second.tokens) == kept + 1, "it computed all its tokens again and went on after them"


def test_a_held_sequence_keeps_its_place_but_not_against_need(make_scheduler: Make) -> None:
    scheduler = make_scheduler(4, prefix_cache=False)
    held, other = sequence("a", 4, new=20), sequence("b", 4, new=20)
    scheduler.add(held)
    scheduler.add(other)
    advance(scheduler)
    held.held = True
    assert {row[0] for row in advance(scheduler)} == {"b"}
    while held.state is SequenceState.RUNNING:
        assert {row[0] for row in advance(scheduler)} == {"b"}
    assert other.state is SequenceState.RUNNING, "the one whose reader reads is not the one that gives way"


@pytest.mark.parametrize(
    ("new", "max_length", "stop", "reason", "generated"),
    [
        (3, 64, frozenset(), "length", 3),
        (9, 7, frozenset(), "length", 3),
        (9, 64, frozenset(["x"]), "stop", 1),
        (1, 64, frozenset(["x"]), "stop", 1),
    ],
)
def test_why_a_sequence_ends(
    make_scheduler: Make, new: int, max_length: int, stop: frozenset[Hashable], reason: str, generated: int
) -> None:
    scheduler = make_scheduler(max_length=max_length)
    running = sequence("a", 4, new=new, stop_tokens=stop)
    scheduler.add(running)
    reasons: list[str | None] = [None]
    while reasons == [None]:
        batch = scheduler.schedule()
        reasons = list(scheduler.commit(batch, ["x"]))
    assert reasons == [reason]
    assert running.num_generated == generated
    assert running.state is SequenceState.FINISHED
    assert scheduler.blocks.num_free == scheduler.blocks.num_blocks


def test_a_known_prefix_is_not_computed_again(make_scheduler: Make) -> None:
    scheduler = make_scheduler()
    tokens: list[Hashable] = list(range(10))
    scheduler.add(Sequence("a", [*tokens], 10, 1))
    assert advance(scheduler) == [("a", 0, 10, True)]
    again = Sequence("b", [*tokens[:8], 77, 78, 79], 11, 1)
    scheduler.add(again)
    assert advance(scheduler) == [("b", 8, 3, True)]
    assert (again.num_cached, scheduler.num_prefix_hits) == (8, 1)


def test_a_wholly_known_prompt_still_computes_its_last_token(make_scheduler: Make) -> None:
    scheduler = make_scheduler()
    for name in "ab":
        scheduler.add(Sequence(name, list(range(8)), 8, 1))
        last = advance(scheduler)
    assert last == [("b", 4, 4, True)]


@pytest.mark.parametrize("salts", [(b"one", b"two"), (None, None), (b"", None)])
def test_prefixes_are_shared_only_under_one_salt(make_scheduler: Make, salts: tuple[bytes | None, ...]) -> None:
    scheduler = make_scheduler()
    for name, salt in zip("ab", salts, strict=True):
        scheduler.add(Sequence(name, list(range(9)), 9, 1, cache_salt=salt))
        last = advance(scheduler)
    assert last == [("b", 0, 9, True)]


def test_removal_between_schedule_and_commit_passes_the_row_over(make_scheduler: Make) -> None:
    scheduler = make_scheduler()
    gone, stays = sequence("a", 3), sequence("b", 3)
    scheduler.add(gone)
    scheduler.add(stays)
    batch = scheduler.schedule()
    scheduler.remove(gone)
    scheduler.remove(gone)
    assert scheduler.commit(batch, ["x", "y"]) == [None, None]
    assert (gone.num_generated, stays.tokens[-1]) == (0, "y")
    scheduler.remove(stays)
    assert scheduler.blocks.num_free == scheduler.blocks.num_blocks


@pytest.mark.parametrize("length", [0, 16, 17])
def test_a_sequence_without_room_is_refused(make_scheduler: Make, length: int) -> None:
    with pytest.raises(ValueError, match="tokens, allowed are 1 to 15"):
        make_scheduler(max_length=16).add(sequence("a", length))


def test_limits_are_checked() -> None:
    with pytest.raises(ValueError, match="2 blocks cannot hold a sequence of 9 tokens"):
        Scheduler(SchedulerConfig(max_length=9), BlockManager(2, 4))
    for bad in ({"max_running": 0}, {"max_batch_tokens": 0}, {"max_chunk_tokens": 0}, {"max_length": 1}):
        with pytest.raises(ValueError, match="positive"):
            SchedulerConfig(**bad)


request = st.tuples(
    st.integers(1, 14),  # prompt length
    st.integers(1, 10),  # new tokens
    st.integers(0, 2),  # which of three prompts it begins as
    st.sampled_from([math.inf, 1.0, 2.0]),  # due
    st.integers(0, 12),  # step at which it arrives
    st.one_of(st.none(), st.integers(1, 25)),  # step at which it is aborted
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(request, min_size=1, max_size=7),
    pool=st.integers(6, 16),
    slots=st.integers(1, 4),
    chunk=st.integers(1, 9),
    prefix_cache=st.booleans(),
)
def test_no_order_of_events_changes_a_result(
    runner: Any,
    make_scheduler: Make,
    expected: Expected,
    requests: list[Any],
    pool: int,
    slots: int,
    chunk: int,
    prefix_cache: bool,
) -> None:
    runner.memory.clear()
    scheduler = make_scheduler(
        pool, prefix_cache=prefix_cache, max_running=slots, max_batch_tokens=2 * chunk, max_chunk_tokens=chunk
    )
    sequences: list[Sequence] = []
    for index, (length, new, kind, due, _, _) in enumerate(requests):
        tokens: list[Hashable] = [kind * 100 + offset for offset in range(length)]
        sequences.append(Sequence(f"r{index}", tokens, length, new, due=due))
    for step in range(600):
        for item, (_, _, _, _, arrives, aborted) in zip(sequences, requests, strict=True):
            if arrives == step:
                scheduler.add(item)
            if aborted == step and arrives < step:
                scheduler.remove(item)
        batch = scheduler.schedule()
        if not batch.rows and step > 25:
            break
        assert len({row.sequence.request_id for row in batch.rows}) == len(batch.rows) <= slots
        assert sum(row.count for row in batch.rows[batch.num_decodes :]) <= 2 * chunk
        scheduler.commit(batch, [item.token for item in runner.step(batch)])
    assert not scheduler.running
    assert not scheduler.waiting
    assert scheduler.blocks.num_free == pool
    for item, (length, new, _, _, _, aborted) in zip(sequences, requests, strict=True):
        generated = item.tokens[length:]
        assert generated == expected(tuple(item.tokens[:length]), len(generated))
        assert aborted is not None or len(generated) == new
