"""Who computes, who waits and who gives way, where each sequence's `due` follows its client's playback."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from omnistage.ar.scheduler import Scheduler
from omnistage.ar.sequence import Sequence, SequenceState
from omnistage.urgency import Reading, Urgency

Make = Callable[..., Scheduler]
STEP_S = 0.1
"""How long a step takes in these tests."""


class Client:
    """A sequence and the clock of whoever listens to it."""

    def __init__(self, name: str, length: int, new: int, *, now: float, reading: Reading, token_s: float) -> None:
        self.urgency = Urgency(reading, now=now)
        self.token_s = token_s
        tokens: list[Hashable] = [f"{name}{index}" for index in range(length)]
        self.sequence = Sequence(name, tokens, length, new, due=self.urgency.due)


class Rig:
    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.now = 0.0
        self.clients: dict[str, Client] = {}

    def add(
        self, name: str, length: int, *, new: int = 40, reading: Reading = "stream", token_s: float = 0.2
    ) -> Client:
        client = Client(name, length, new, now=self.now, reading=reading, token_s=token_s)
        self.clients[name] = client
        self.scheduler.add(client.sequence)
        return client

    def step(self) -> list[tuple[str, int]]:
        """One step; which sequences were in it, with how many tokens, in order."""
        batch = self.scheduler.schedule()
        self.scheduler.commit(batch, ["x"] * len(batch.emitting))
        self.now += STEP_S
        for row in batch.emitting:
            client = self.clients[row.sequence.request_id]
            client.urgency.made(client.token_s, self.now)
            client.sequence.due = client.urgency.due
        return [(row.sequence.request_id, row.count) for row in batch.rows]

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()


def test_the_first_chunk_of_the_budget_goes_to_the_prompt_whose_client_waits_longest(make_scheduler: Make) -> None:
    rig = Rig(make_scheduler(max_batch_tokens=4, max_chunk_tokens=4))
    rig.add("batch", 8, reading="batch")
    rig.add("whole", 8, reading="whole")
    rig.add("stream", 8)
    assert [rig.step() for _ in range(2)] == [[("stream", 4)], [("stream", 4)]]
    assert rig.step() == [("stream", 1), ("whole", 4)]


def test_where_room_is_short_the_stream_with_the_most_in_hand_gives_way(make_scheduler: Make) -> None:
    rig = Rig(make_scheduler(8, prefix_cache=False, max_batch_tokens=64))
    rich, poor = rig.add("rich", 12, token_s=1.0), rig.add("poor", 12, token_s=0.05)
    rig.step()
    while rich.sequence.state is not SequenceState.WAITING:
        rig.step()
        assert poor.sequence.state is SequenceState.RUNNING, "the one that lives from hand to mouth goes on"
    assert rig.scheduler.num_preemptions == 1
    assert rich.urgency.due - rig.now > poor.urgency.due - rig.now


def test_it_does_not_matter_who_came_first(make_scheduler: Make) -> None:
    rig = Rig(make_scheduler(8, prefix_cache=False, max_batch_tokens=64))
    poor, rich = rig.add("poor", 12, token_s=0.05), rig.add("rich", 12, token_s=1.0)
    while rig.scheduler.num_preemptions == 0:
        rig.step()
    assert (poor.sequence.state, rich.sequence.state) == (SequenceState.RUNNING, SequenceState.WAITING)


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [("stream", "stream", "bc"), ("whole", "stream", "cb"), ("batch", "whole", "cb"), ("stream", "whole", "bc")],
)
def test_a_free_slot_goes_to_who_runs_dry_first(
    make_scheduler: Make, first: Reading, second: Reading, order: str
) -> None:
    rig = Rig(make_scheduler(max_running=1))
    rig.add("a", 2, new=5)
    rig.step()
    rig.add("b", 2, new=5, reading=first)
    rig.add("c", 2, new=5, reading=second)
    seen = [name for _ in range(15) for name, count in rig.step() if count == 2]
    assert "".join(seen) == order


def test_an_answer_in_one_piece_that_has_waited_passes_streams_that_just_came(make_scheduler: Make) -> None:
    rig = Rig(make_scheduler(max_running=1))
    rig.add("a", 2, new=60)
    rig.add("whole", 2, new=5, reading="whole")
    rig.steps(50)
    rig.add("new", 2, new=5)
    seen = [name for _ in range(20) for name, count in rig.step() if count == 2]
    assert seen == ["whole", "new"]


client = st.tuples(
    st.integers(1, 12),  # prompt
    st.integers(1, 12),  # new tokens
    st.sampled_from(["stream", "whole", "batch"]),
    st.sampled_from([0.0, 0.05, 0.2, 2.0]),  # seconds that a token lasts
    st.integers(0, 20),  # step at which it arrives
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(clients=st.lists(client, min_size=1, max_size=8), pool=st.integers(6, 14), slots=st.integers(1, 3))
def test_everybody_is_served_to_the_end(make_scheduler: Make, clients: list[Any], pool: int, slots: int) -> None:
    rig = Rig(make_scheduler(pool, max_running=slots, max_batch_tokens=8, max_chunk_tokens=4))
    for step in range(800):
        for index, (length, new, reading, token_s, arrives) in enumerate(clients):
            if arrives == step:
                rig.add(f"r{index}", length, new=new, reading=reading, token_s=token_s)
        rig.step()
        if step > 20 and not rig.scheduler.running and not rig.scheduler.waiting:
            break
    assert all(
        rig.clients[f"r{index}"].sequence.num_generated == new for index, (_, new, _, _, _) in enumerate(clients)
    )
    assert rig.scheduler.blocks.num_free == pool
