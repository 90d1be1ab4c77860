"""A complete running system among broken peers and curious clients: nothing dies, and no secret is told."""

from __future__ import annotations

import asyncio
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import nats
import openai
import psutil
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.support.inspection import jetstream, metric, metrics_page
from tests.support.mutations import HEADERS, Body, broken, golden
from tests.support.system import System, running_system

from omnistage.subjects import DEAD, Subjects

CLOSED_S = 0.1
"""A closed client's socket is let go by the loop a moment later, and `asyncio.run` ends the loop at once."""

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(500)]

KEY, OTHER_KEY, WRONG_KEY = "canary-key-one", "canary-key-two", "canary-key-wrong"
BROKER_PASSWORD = "canary-broker-password"
WORDS = "Canary words are not for logs"
ENVIRONMENT = {
    "OMNISTAGE_API_KEYS": f"lab={KEY},home={OTHER_KEY}",
    "OMNISTAGE_BUS_PASSWORD": BROKER_PASSWORD,
    "OMNISTAGE_LOG_LEVEL": "debug",
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system with secrets, at its most talkative."""
    with running_system(tmp_path_factory.mktemp("hostile"), environment=ENVIRONMENT) as running:
        yield running


def answers_well(system: System) -> None:
    """Both kinds of requests are served."""
    with system.client(api_key=KEY) as client:
        sound = client.audio.speech.create(model="tts-1", voice="alloy", input=WORDS, response_format="pcm")
        assert len(sound.content) > 24_000
        chat = client.chat.completions.create(
            model="gpt-4o-mini", max_completion_tokens=8, messages=[{"role": "user", "content": WORDS}]
        )
        assert chat.choices[0].message.content


def page(url: str, key: str = "") -> str:
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return f"{answer.headers}{answer.read().decode()}"
    except urllib.error.HTTPError as error:
        with error:
            return f"{error.headers}{error.read().decode()}"


def processes(system: System) -> list[dict[str, Any]]:
    return [entry for entry in system.status()["processes"] if entry["metrics_port"]]


def test_no_secret_is_told(hostile: System) -> None:
    answers_well(hostile)
    said = []
    for key in (WRONG_KEY, ""):
        with pytest.raises(openai.AuthenticationError) as refused, hostile.client(api_key=key or "-") as client:
            client.models.list()
        said.append(str(refused.value))
    with pytest.raises(openai.BadRequestError) as wrong, hostile.client(api_key=KEY) as client:
        client.audio.speech.create(model="tts-1", voice="no such voice", input=WORDS)
    said.append(str(wrong.value))
    for path in ("/", "/health", "/ready", "/metrics", "/openapi.json", f"/v1/models?api_key={KEY}", f"/{OTHER_KEY}"):
        said.append(page(hostile.url + path, KEY).replace(f"/{OTHER_KEY}", ""))
    for entry in processes(hostile):
        said.append(metrics_page(entry["metrics_port"]))
        said += [page(f"http://127.0.0.1:{entry['metrics_port']}{path}") for path in ("/health", "/ready", "/else")]
        said.append(" ".join(psutil.Process(entry["pid"]).cmdline()))
    said += [
        hostile.omnistage("status"),
        hostile.omnistage("status", "--json"),
        hostile.logs(),
        hostile.traces.read_text(),
    ]
    password = msgspec.json.decode((hostile.data / "run" / "state.json").read_bytes())["bus_password"]
    assert password == BROKER_PASSWORD
    for secret in (KEY, OTHER_KEY, WRONG_KEY, BROKER_PASSWORD, WORDS):
        assert [text[max(0, text.find(secret) - 80) :][:200] for text in said if secret in text] == []


def _knock(url: str, credentials: dict[str, str]) -> str:
    """What the broker answers; by hand, since the client leaves its socket open when it is refused."""
    host, _, port = url.removeprefix("nats://").rpartition(":")
    hello = {"verbose": False, "pedantic": False, "protocol": 1, "lang": "python", "version": "0", **credentials}
    with socket.create_connection((host, int(port)), timeout=5) as connection, connection.makefile("rwb") as stream:
        assert stream.readline().startswith(b"INFO ")
        stream.write(b"CONNECT " + msgspec.json.encode(hello) + b"\r\nPING\r\n")
        stream.flush()
        return stream.readline().decode()


def test_the_embedded_servers_are_for_this_machine_and_its_owner_alone(hostile: System) -> None:
    for credentials in ({}, {"user": "omnistage"}, {"user": "omnistage", "pass": "wrong"}):
        assert "Authorization Violation" in _knock(hostile.state.bus_url, credentials)
    assert "PONG" in _knock(hostile.state.bus_url, {"user": "omnistage", "pass": BROKER_PASSWORD})
    for process in psutil.Process(hostile.process.pid).children(recursive=True):
        listening = [c.laddr.ip for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        assert set(listening) <= {"127.0.0.1", "::1"}, (process.name(), listening)
    assert hostile.state.redis_url.startswith("unix://")
    for private in (
        hostile.data / "run",
        Path(hostile.state.redis_url.removeprefix("unix://").partition("?")[0]).parent,
    ):
        assert private.stat().st_mode & 0o077 == 0, private
    assert (hostile.data / "run" / "state.json").stat().st_mode & 0o077 == 0


async def _quiet(_error: Exception) -> None:
    return


SUBJECT_TAILS = (
    ("talker", "heart"), ("codec", "heart-wave"), ("thinker", "smollm2"), ("talker", "nobody"), ("nobody", "x"),
)  # fmt: skip


def subjects_of(namespace: str, number: int) -> list[str]:
    """Right and wrong subjects of every class."""
    subjects = Subjects(namespace)
    found = [subjects.ctl_everyone(), subjects.ctl_request(f"f{number}"), subjects.ctl_instance("talker-1")]
    found += [subjects.presence("talker", f"forged-{number}"), subjects.presence("gateway", f"forged-{number}")]
    for stage, engine in SUBJECT_TAILS:
        work, feed = (
            subjects.work(stage, engine, f"f{number}"),
            subjects.feed(stage, engine, f"f{number}", "talker-codec"),
        )
        out, dead = (
            subjects.out(stage, engine, f"f{number}", "codec-gateway"),
            subjects.dead(stage, engine, f"f{number}"),
        )
        found += [work, work.upper(), f"{work}.more.tokens", work.rpartition(".")[0], f"{work}-UPPER", feed, out, dead]
        found += [subjects.live(feed), subjects.live(out), f"{feed}.more"]
    return [subject for subject in found if subject.startswith(namespace)]


bodies = st.one_of(
    broken(golden()), broken(golden()), broken(golden()),
    st.sampled_from([b"", b"x" * 262_144, b"x" * 262_145, b"x" * 1_000_000, b"\x91" * 900_000]).map(Body),
)  # fmt: skip
headers = st.none() | st.sampled_from(HEADERS).map(lambda pair: {pair[0]: pair[1].replace("\0", "")})


@settings(
    max_examples=4, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(st.lists(st.tuples(st.integers(0, 10_000), bodies, headers), min_size=60, max_size=60))
def test_a_bus_full_of_rubbish(hostile: System, spray: list[tuple[int, bytes, dict[str, str] | None]]) -> None:
    """Rubbish on every subject while requests run: no process ends, the requests that are good are answered."""
    before = {entry["instance"]: entry["pid"] for entry in processes(hostile)}

    async def pour() -> None:
        state = hostile.state
        # That live records may not be forged is an error of this client's, told to its callback.
        client = await nats.connect(state.bus_url, user=state.bus_user, password=state.bus_password, error_cb=_quiet)
        for number, (where, body, header) in enumerate(spray):
            targets = subjects_of(state.namespace, where)
            await client.publish(targets[(where + number) % len(targets)], body, headers=header)
            await client.publish(targets[(where * 7 + number) % len(targets)], body, headers=header)
        await client.flush()
        await client.close()
        await asyncio.sleep(CLOSED_S)

    asyncio.run(pour())
    answers_well(hostile)
    after = {entry["instance"]: entry["pid"] for entry in processes(hostile)}
    assert after == before


def test_rubbish_is_counted_and_kept_for_people(hostile: System) -> None:
    state, before = hostile.state, time.monotonic()

    async def forge() -> int:
        client = await nats.connect(state.bus_url, user=state.bus_user, password=state.bus_password)
        subjects = Subjects(state.namespace)
        buried = subjects.dead("talker", "heart", "forged-one")
        await client.publish(subjects.work("talker", "heart", "forged-one"), b"\xff no message")
        await client.publish(subjects.presence("talker", "forged"), b"\xff no message")
        await client.publish(subjects.ctl_everyone(), b"\xff no message")
        await client.flush()
        await client.close()
        await asyncio.sleep(CLOSED_S)
        async with jetstream(state) as stream:
            while time.monotonic() < before + 60:
                kept = await stream.stream_info(subjects.stream(DEAD), subjects_filter=buried)
                if kept.state.subjects:
                    return len(kept.state.subjects)
                await asyncio.sleep(0.1)
        return 0

    assert asyncio.run(forge()) == 1
    for via, services in (("work", ("talker",)), ("presence", ("gateway", "talker")), ("ctl", ("gateway", "codec"))):
        for service in services:
            port = next(entry["metrics_port"] for entry in processes(hostile) if entry["service"] == service)
            assert metric(port, "omnistage_skipped_messages_total", via=via) >= 1, (via, service)
    answers_well(hostile)
