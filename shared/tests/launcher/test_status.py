"""`omnistage status` without a terminal: a line for each process, that programs and people can read."""

from __future__ import annotations

from typing import Any

from omnistage.launcher.status import status_lines


def process(name: str, running: int = 0, engines: tuple[str, ...] = (), **given: Any) -> dict[str, Any]:
    return {
        "name": name,
        "service": name.rpartition("-")[0] or name,
        "instance": f"{name}-ab",
        "pid": 7,
        "state": "ready",
        "detail": "",
        "version": "1.0",
        "uptime_s": 3.0,
        "restarts": 0,
        "engines": [{"engine": engine} for engine in engines],
        "slots": 4,
        "queue": 1,
        "running": [f"{number:032x}" for number in range(running)],
    } | given


def test_a_line_each_aligned_and_in_the_order_of_pipelines() -> None:
    processes = [
        process("nats", instance="", version=None),
        process("codec-1", running=5, engines=("a", "b", "c", "d", "e")),
        process("talker-10", engines=("t",)),
        process("thinker-1", state="starting", detail="reading\nweights", pid=None),
        process("talker-2", running=2, engines=("t",)),
        process("gateway-1"),
    ]
    lines = status_lines({"address": "http://h:1", "ready": False, "processes": processes})
    assert lines[0] == "http://h:1  starting"
    assert len(lines) == 2 + len(processes)
    assert all(line == line.rstrip() for line in lines)
    columns = [line.split() for line in lines[1:]]
    assert [row[0] for row in columns] == ["service", "nats", "gateway", "thinker", "talker", "talker", "codec"]
    assert [row[1] for row in columns[4:]] == ["talker-2-ab", "talker-10-ab", "codec-1-ab"]
    assert len({line.index("ready") for line in lines[2:] if "ready" in line}) == 1
    assert "reading weights" in lines[4]
    ids = [f"{number:032x}" for number in range(5)]
    assert f"5: {ids[0]}, {ids[1]}, {ids[2]} +2" in lines[-1]
    assert "a, b, c +2" in lines[-1]
    assert f"2: {ids[0]}, {ids[1]}  " in lines[5]
