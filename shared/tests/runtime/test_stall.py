"""Steps that take longer than they may are noticed."""

from __future__ import annotations

import pytest

from omnistage.stall import StallWatch


def test_only_a_step_beyond_its_time_is_a_stall() -> None:
    now = 10.0
    watch = StallWatch(2.0, clock=lambda: now)
    assert watch.stalled_s() == 0
    with watch.step():
        now = 11.5
        assert watch.stalled_s() == 0
        with watch.step():
            now = 15.0
            assert watch.stalled_s() == 3.0
        assert watch.stalled_s() == 3.0
    assert watch.stalled_s() == 0


def test_a_failing_step_is_over() -> None:
    now = 0.0
    watch = StallWatch(0.0, clock=lambda: now)
    with pytest.raises(ValueError, match="broken"), watch.step():
        raise ValueError("broken")
    now = 9.0
    assert watch.stalled_s() == 0
