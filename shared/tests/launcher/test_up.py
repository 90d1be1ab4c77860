"""`omnistage up` with real processes, a real broker and a real tensor server."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from typing import Any

import httpx
import psutil
import pytest

from omnistage.launcher.folder import DataFolder
from omnistage.launcher.state import read_state
from omnistage.runtime.claims import CLAIM_TTL_S, CLAIMS_BUCKET
from omnistage.runtime.context import REQUESTS_BUCKET, TOMBSTONE_TTL_S
from omnistage.transport.connect import connect

pytestmark = pytest.mark.integration

STOP_S = 5.0 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
"""The promise is 5 s on a machine that has nothing else to do."""


def gateway_pid(address: str) -> int:
    """Asked over HTTP, which also proves that somebody answers."""
    return int(httpx.get(f"{address}/ready", timeout=20).text)


def assert_nothing_left(launched: Any) -> None:
    folder = DataFolder(launched.data)
    assert launched.processes() == []
    assert not folder.arena.exists()
    assert sorted(path.name for path in launched.data.iterdir()) == ["logs", "nats", "run"]
    assert [path.name for path in folder.run.iterdir()] == ["lock"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_starts_tells_and_stops(launched: Any, number: signal.Signals) -> None:
    launched.start()
    address = launched.until_ready()

    status = launched.status()
    assert (status["ready"], status["address"], status["pid"]) == (True, address, launched.process.pid)
    assert [process["name"] for process in status["processes"]] == [
        "nats",
        "tensors",
        "gateway-1",
        "talker-1",
        "codec-1",
    ]
    assert {process["state"] for process in status["processes"]} == {"ready"}
    talker = status["processes"][3]
    assert talker["instance"].startswith("talker-1-")
    assert psutil.Process(talker["pid"]).ppid() == launched.process.pid
    assert (talker["version"], talker["slots"], talker["queue"], talker["running"]) == ("9.9", 4, 2, ["r1", "r2"])
    assert [engine["engine"] for engine in talker["engines"]] == ["e"]
    assert gateway_pid(address) == status["processes"][2]["pid"]
    assert oct(DataFolder(launched.data).state.stat().st_mode)[-3:] == "600"

    launched.process.send_signal(number)
    assert launched.process.wait(STOP_S) == 0
    assert_nothing_left(launched)
    with pytest.raises(httpx.ConnectError):
        httpx.get(address)


def test_output_without_a_terminal_is_plain_lines(launched: Any) -> None:
    launched.order("talker-slow")
    launched.start()
    launched.wait_for(lambda: "talker-1: starting (e: reading weights)" in launched.said())
    assert launched.status()["ready"] is False
    launched.process.terminate()
    assert launched.process.wait(STOP_S) == 0
    assert "is ready" not in launched.said()
    assert "\x1b" not in launched.said()
    assert_nothing_left(launched)


def test_services_get_their_environment_and_no_more(launched: Any) -> None:
    launched.start("--quiet")
    launched.until_ready()
    assert "talker-1:" not in launched.said()
    logs = launched.run("logs", "-n", "5").stdout
    threads = max(1, (os.cpu_count() or 1) // 2)
    assert f"| talker threads={threads} PASSIVE keys=None" in logs
    assert f"| gateway threads={threads} PASSIVE keys=secret" in logs


def test_stops_in_time_when_services_are_deaf_and_have_children(launched: Any) -> None:
    for name in ("talker-deaf", "codec-deaf", "talker-grandchild"):
        launched.order(name)
    launched.start()
    launched.until_ready()
    assert "sleep" in {process.name() for process in launched.processes()}
    launched.process.terminate()
    assert launched.process.wait(STOP_S) == 0
    assert_nothing_left(launched)


def test_kill_of_the_launcher_takes_the_children_along_and_the_next_start_is_clean(launched: Any) -> None:
    launched.order("talker-grandchild")
    launched.start()
    launched.until_ready()
    folder = DataFolder(launched.data)
    (folder.arena / "left-over").write_bytes(b"x")
    launched.process.kill()
    launched.process.wait()
    launched.wait_for(lambda: {process.name() for process in launched.processes()} <= {"sleep"})

    told = launched.run("status")
    assert told.returncode == 1
    assert f"nothing runs from {launched.data}: its launcher was killed; `" in told.stderr
    assert len(told.stderr.splitlines()) == 1

    launched.countermand("talker-grandchild")
    launched.output.unlink()
    launched.start()
    launched.until_ready()
    assert not (folder.arena / "left-over").exists()
    assert "sleep" not in {process.name() for process in launched.processes()}
    assert launched.run("down").returncode == 0
    launched.process.wait(STOP_S)
    assert_nothing_left(launched)


def test_down_removes_what_a_killed_launcher_left(launched: Any) -> None:
    launched.order("talker-grandchild")
    launched.start()
    launched.until_ready()
    launched.process.kill()
    launched.process.wait()
    cleared = launched.run("down")
    assert (cleared.returncode, cleared.stderr) == (0, "")
    assert cleared.stdout == f"nothing ran from {launched.data}; removed what a killed launcher had left\n"
    assert_nothing_left(launched)
    assert launched.run("down").returncode == 1


def test_a_killed_service_is_started_again_under_a_new_name_and_its_children_are_gone(launched: Any) -> None:
    launched.order("talker-grandchild")
    launched.start()
    launched.until_ready()
    before = launched.of_service("talker")[0]
    children = psutil.Process(before["pid"]).children()
    assert [child.name() for child in children] == ["sleep"]
    psutil.Process(before["pid"]).kill()
    launched.wait_for(lambda: launched.of_service("talker")[0]["restarts"] == 1)
    launched.wait_for(lambda: launched.of_service("talker")[0]["state"] == "ready")
    after = launched.of_service("talker")[0]
    assert after["pid"] != before["pid"]
    assert after["instance"] != before["instance"]
    assert after["last_exit"] == -signal.SIGKILL
    assert launched.gone(children[0].pid)


def test_clients_wait_while_the_only_gateway_is_restarted(launched: Any) -> None:
    launched.start()
    address = launched.until_ready()
    before = gateway_pid(address)
    psutil.Process(before).kill()
    launched.wait_for(lambda: launched.gone(before))
    assert gateway_pid(address) != before


def test_a_killed_broker_comes_back_where_it_was(launched: Any) -> None:
    launched.start()
    launched.until_ready()
    broker = launched.of_service("nats")[0]
    psutil.Process(broker["pid"]).kill()
    launched.wait_for(lambda: launched.of_service("nats")[0]["restarts"] == 1)
    # Presences reach the launcher again only when everybody has found the broker at its old address.
    before = launched.of_service("talker")[0]["uptime_s"]
    launched.wait_for(
        lambda: (
            launched.of_service("talker")[0]["uptime_s"] > before + 6
            and {process["state"] for process in launched.status()["processes"]} == {"ready"}
        )
    )
    assert launched.of_service("talker")[0]["restarts"] == 0


def test_a_failed_start_is_not_tried_again(launched: Any) -> None:
    launched.order("codec-exit", "3")
    launched.start()
    assert launched.process.wait(30) == 1
    assert "codec-1 could not start (exit code 3)" in launched.said()
    assert "codec cannot start: so it was ordered" in launched.said()
    assert (launched.data / "logs" / "codec-1.log").read_text().count("cannot start") == 1
    assert_nothing_left(launched)


def test_last_words_are_those_of_the_process_that_failed(launched: Any) -> None:
    (launched.data / "logs").mkdir(parents=True)
    (launched.data / "logs" / "codec-1.log").write_text("of a run long ago\n")
    launched.order("codec-exit", "7")
    launched.start()
    assert launched.process.wait(30) == 1
    assert launched.said().count("codec cannot start: so it was ordered") == 1
    assert "of a run long ago" not in launched.said()


def test_what_cannot_be_served_is_said_before_anything_starts(launched: Any) -> None:
    models = launched.folder / "models.yaml"
    models.write_text(models.read_text().replace("engine: none}", "engine: none, checkpoint: /no/such/file}"))
    for extra in ((), ("--detach",)):
        refused = launched.run("up", "--models", str(models), "--port", "0", *extra)
        assert refused.returncode == 1
        assert refused.stderr.startswith("omnistage: engines.t.checkpoint: ")
        assert "; engines.c.checkpoint: " in refused.stderr
        assert len(refused.stderr.splitlines()) == 1
    assert not launched.data.exists()


def test_a_service_that_always_crashes_is_given_up(launched: Any) -> None:
    launched.order("codec-exit", "7")
    launched.start()
    assert launched.process.wait(30) == 1
    assert "codec-1 left with exit code 7" in launched.said()
    assert (launched.data / "logs" / "codec-1.log").read_text().count("cannot start") == 5
    assert_nothing_left(launched)


def test_a_service_that_fails_later_leaves_the_others_running(launched: Any) -> None:
    launched.start()
    launched.until_ready()
    launched.order("codec-exit", "3")
    psutil.Process(launched.of_service("codec")[0]["pid"]).kill()
    launched.wait_for(lambda: launched.of_service("codec")[0]["state"] == "failed")
    assert (launched.data / "logs" / "codec-1.log").read_text().count("cannot start") == 3
    assert launched.of_service("talker")[0]["state"] == "ready"
    launched.countermand("codec-exit")
    assert launched.run("scale", "codec=1").returncode == 0
    assert launched.of_service("codec")[0]["state"] == "ready"


def test_a_used_port_is_one_line_and_nothing_starts(launched: Any) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        launched.start("--port", str(port))
        assert launched.process.wait(30) == 1
        detached = launched.run("up", "-d", "--models", str(launched.folder / "models.yaml"), "--port", str(port))
    assert launched.said().splitlines() == [
        f"omnistage: port {port} is used by another program; choose one with --port or OMNISTAGE_PORT"
    ]
    assert detached.stderr == launched.said()
    assert not launched.data.exists()


def test_one_system_per_data_folder(launched: Any) -> None:
    launched.start()
    port = launched.until_ready().rpartition(":")[2]
    for extra in ((), ("--detach",)):
        second = launched.run("up", "--models", str(launched.folder / "models.yaml"), "--port", port, *extra)
        assert second.returncode == 1
        assert f"a system runs from {launched.data} already" in second.stderr
    assert launched.status()["ready"] is True


def test_threads_follow_the_number_of_instances(launched: Any) -> None:
    """What runs keeps its share of the cores until it is started again."""
    (launched.folder / "fakes" / "sitecustomize.py").write_text("import os; os.cpu_count = lambda: 12\n")

    def threads() -> dict[str, str]:
        running = launched.status()["processes"]
        return {
            one["name"]: psutil.Process(one["pid"]).environ()["OMP_NUM_THREADS"]
            for one in running
            if one["service"] in ("talker", "codec")
        }

    launched.start()
    launched.until_ready()
    assert threads() == {"talker-1": "6", "codec-1": "6"}
    assert launched.run("scale", "gateway=2", "talker=3").returncode == 0
    assert threads() == {"talker-1": "6", "codec-1": "6", "talker-2": "3", "talker-3": "3"}
    codec = launched.of_service("codec")[0]["pid"]
    os.kill(codec, signal.SIGKILL)
    launched.wait_for(lambda: launched.of_service("codec")[0]["state"] == "ready")
    launched.wait_for(lambda: launched.of_service("codec")[0]["pid"] not in (None, codec))
    assert threads()["codec-1"] == "3"


def test_scale_up_and_down(launched: Any) -> None:
    launched.start("--scale", "codec=2")
    address = launched.until_ready()
    assert [process["name"] for process in launched.of_service("codec")] == ["codec-1", "codec-2"]

    assert launched.run("scale", "talker=3", "codec=1", "gateway=2").stdout.splitlines() == [
        "talker: 1 -> 3",
        "codec: 2 -> 1",
        "gateway: 1 -> 2",
    ]
    talkers = launched.of_service("talker")
    assert [(talker["name"], talker["state"]) for talker in talkers] == [
        ("talker-1", "ready"),
        ("talker-2", "ready"),
        ("talker-3", "ready"),
    ]
    assert [process["name"] for process in launched.of_service("codec")] == ["codec-1"]

    first, second = (process["pid"] for process in launched.of_service("gateway"))
    assert gateway_pid(address) in (first, second)
    os.kill(first, signal.SIGSTOP)
    assert {gateway_pid(address) for _ in range(3)} == {second}
    os.kill(first, signal.SIGCONT)

    assert launched.run("scale", "talker=1").stdout == "talker: 3 -> 1\n"
    assert [talker["pid"] for talker in launched.of_service("talker")] == [talkers[0]["pid"]]


def test_restart_replaces_one_instance_after_the_other(launched: Any) -> None:
    launched.start("--scale", "talker=2")
    address = launched.until_ready()
    talkers, gateway = launched.of_service("talker"), gateway_pid(address)
    assert launched.run("restart", "talker", "gateway").stdout.splitlines() == [
        "talker-1 -> talker-3",
        "talker-2 -> talker-1",
        "gateway-1 -> gateway-2",
    ]
    new = launched.of_service("talker")
    assert {talker["state"] for talker in new} == {"ready"}
    assert {talker["name"] for talker in new} == {"talker-1", "talker-3"}
    assert {talker["pid"] for talker in new}.isdisjoint(talker["pid"] for talker in talkers)
    assert all(launched.gone(talker["pid"]) for talker in talkers)
    assert gateway_pid(address) == launched.of_service("gateway")[0]["pid"] != gateway


def test_restart_keeps_the_old_instance_when_the_new_one_fails(launched: Any) -> None:
    launched.start()
    launched.until_ready()
    before = launched.of_service("codec")
    launched.order("codec-exit", "3")
    failed = launched.run("restart", "codec")
    assert failed.returncode == 1
    assert "codec-2 could not start (exit code 3)" in failed.stderr
    assert [codec["pid"] for codec in launched.of_service("codec")] == [before[0]["pid"]]
    assert launched.of_service("codec")[0]["state"] == "ready"
    for name, fault in (("dit", "there is no service 'dit' here"), ("nats", "no instance 'nats' of a service here")):
        refused = launched.run("restart", name)
        assert refused.returncode == 1
        assert fault in refused.stderr


def test_what_the_dead_left_on_the_bus_is_settled(launched: Any) -> None:
    launched.start()
    launched.until_ready()
    state = read_state(DataFolder(launched.data))

    async def kill_both() -> None:
        bus = await connect(
            state.bus_url, state.namespace, name="test", user=state.bus_user, password=state.bus_password
        )
        claims = await bus.key_value(CLAIMS_BUCKET, ttl_s=CLAIM_TTL_S)
        tombstones = await bus.key_value(REQUESTS_BUCKET, ttl_s=TOMBSTONE_TTL_S)
        dead = {name: launched.of_service(name)[0] for name in ("talker", "gateway")}
        await claims.put(f"{dead['talker']['instance']}.r9.e", b"$JS.ACK.OMNI_WORK.talker-t.1.1.1.1.0")
        await claims.put("talker-1-other.r9.e", b"$JS.ACK.OMNI_WORK.talker-t.1.1.1.1.0")
        for process in dead.values():
            psutil.Process(process["pid"]).kill()
        async with asyncio.timeout(30):
            while len(await claims.keys()) > 1 or len(await tombstones.keys()) < 2:
                await asyncio.sleep(0.05)
        assert await claims.keys() == ["talker-1-other.r9.e"]
        assert await tombstones.keys() == ["r1", "r2"]
        await bus.close()

    asyncio.run(kill_both())


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("dit=2", "there is no service 'dit' here; there are: gateway, talker, codec"),
        ("talker=0", "talker=0: between 1 and 64 instances can run"),
        ("talker=65", "talker=65: between 1 and 64 instances can run"),
    ],
)
def test_scale_refuses_what_cannot_be(launched: Any, asked: str, answer: str) -> None:
    refused = launched.run("up", "--models", str(launched.folder / "models.yaml"), "--port", "0", "--scale", asked)
    assert (refused.returncode, refused.stderr) == (1, f"omnistage: {answer}\n")


def test_detached_until_down(launched: Any) -> None:
    started = launched.run("up", "--detach", "--models", str(launched.folder / "models.yaml"), "--port", "0")
    assert started.returncode == 0, started.stderr
    assert "is ready: http://127.0.0.1:" in started.stdout
    assert "Stop it with `" in started.stdout
    assert f"omnistage down --data {launched.data}`." in started.stdout
    status = launched.status()
    assert status["ready"] is True
    stopped = launched.run("down")
    assert (stopped.returncode, stopped.stdout) == (0, "stopped\n")
    launched.wait_for(lambda: launched.gone(status["pid"]))
    assert_nothing_left(launched)
    again = launched.run("down")
    assert again.returncode == 1
    assert again.stderr.startswith(f"omnistage: nothing runs from {launched.data};")


def test_detached_start_that_fails_says_why(launched: Any) -> None:
    launched.order("codec-exit", "3")
    failed = launched.run("up", "--detach", "--models", str(launched.folder / "models.yaml"), "--port", "0")
    assert failed.returncode == 1
    assert failed.stderr.startswith("omnistage: codec-1 could not start")
    assert (failed.stdout + failed.stderr).count("codec cannot start: so it was ordered") == 1
    assert_nothing_left(launched)


def test_ctrl_c_of_a_detached_start_stops_what_was_started(launched: Any) -> None:
    launched.order("talker-slow")
    launched.start("--detach")
    launched.wait_for(lambda: "talker-1: starting (e: reading weights)" in launched.said())
    launched.process.send_signal(signal.SIGINT)
    assert launched.process.wait(15) == 130
    assert "Traceback" not in launched.said()
    assert_nothing_left(launched)
