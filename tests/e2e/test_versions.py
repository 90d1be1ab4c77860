"""Services of two releases side by side, older and newer on either end of every edge; and an upgrade under load."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from tests.support.inspection import jetstream, metric
from tests.support.releases import NEXT, VERSION, Release, next_release
from tests.support.sentences import PARAGRAPH, PLAIN
from tests.support.system import System, running_system

from omnistage import __version__
from omnistage.contracts import End, Failed, Forget, Opened, SpeakText, SpeechOptions, decode_record, encode
from omnistage.launcher.control import ask_async
from omnistage.runtime.meta import Meta
from omnistage.subjects import WORK, Subjects
from omnistage.transport import Bus, BusOptions
from omnistage.transport.topology import VERSION as TOPOLOGY
from omnistage.transport.topology import VERSION_KEY

pytestmark = [pytest.mark.e2e, pytest.mark.chaos, pytest.mark.timeout(600)]

NOW, NEW = __version__, VERSION
UPGRADE = ("codec", "talker", "thinker", "gateway")
"""Who receives comes before who sends."""

SPOKEN, ASKED = PLAIN[:6], ("Tell me about the sea.", "What is a train?")
LONG = " ".join(PARAGRAPH.split(". ")[0:2])
PATIENCE_S = 120.0

PACED = """
version: 1
engines:
  heart: {settings: {pace: 4}}
  heart-wave: {settings: {pace: 4}}
"""
"""Slow enough that a request is under way for a few seconds."""

Arrangement = dict[str, tuple[str, ...]]

MIXED: Arrangement = {"codec": (NOW, NEW), "talker": (NOW, NEW)}
ARRANGEMENTS: dict[str, Arrangement] = {
    "mixed talkers and codecs": MIXED | {"thinker": (NOW,), "gateway": (NOW,)},
    "mixed talkers and codecs, the rest newer": MIXED | {"thinker": (NEW,), "gateway": (NEW,)},
    "newer gateway": {"codec": (NOW, NOW), "talker": (NOW, NOW), "thinker": (NOW,), "gateway": (NEW,)},
    "all newer": {"codec": (NEW, NEW), "talker": (NEW, NEW), "thinker": (NEW,), "gateway": (NEW,)},
    "newer stages": {"codec": (NEW, NEW), "talker": (NEW, NEW), "thinker": (NEW,), "gateway": (NOW,)},
}
PITCHED = {
    "newer gateway": "503 upgrade_in_progress",
    "mixed talkers and codecs, the rest newer": "503 upgrade_in_progress",
    "all newer": None,
}
"""What becomes of a request that needs the newer release; an older gateway does not know the parameter."""


@pytest.fixture(scope="module")
def release(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Release:
    return next_release(root, tmp_path_factory.mktemp("next"))


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory, root: Path) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("versions")
    overlay = folder / "paced.yaml"
    overlay.write_text(PACED)
    models = f"{root / 'deploy' / 'models.yaml'},{overlay}"
    with running_system(folder, scale="talker=2,codec=2", models=models) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def expected(system: System) -> list[Any]:
    """Answers of the system while all its services are of the current release."""
    return asyncio.run(answers(system))


async def processes(system: System, service: str) -> list[dict[str, Any]]:
    status = await ask_async(system.state.control, "status")
    return [process for process in status["processes"] if process["service"] == service]


async def arrange(system: System, release: Release, wanted: Arrangement) -> None:
    """Replace instances until those of each service are of these versions."""
    for service, versions in wanted.items():
        missing, superfluous = list(versions), []
        for process in await processes(system, service):
            if process["version"] in missing:
                missing.remove(process["version"])
            else:
                superfluous.append(process["name"])
        for name, version in zip(superfluous, missing, strict=True):
            python = str(release.python) if version == NEW else sys.executable
            await ask_async(system.state.control, "replace", name=name, python=python)
        assert sorted(process["version"] for process in await processes(system, service)) == sorted(versions)


async def speak(client: openai.AsyncOpenAI, text: str, **extra: Any) -> bytes:
    answer = await client.audio.speech.create(
        model="tts-1", voice="alloy", input=text, response_format="pcm", extra_body={"seed": 7, **extra}
    )
    return answer.content


async def converse(client: openai.AsyncOpenAI, question: str) -> tuple[str, str]:
    """Transcript and base64 samples of a spoken answer."""
    answer = await client.chat.completions.create(
        model="gpt-4o-audio-preview",
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
        temperature=0.8,
        seed=7,
        max_completion_tokens=16,
        messages=[{"role": "user", "content": question}],
    )
    audio = answer.choices[0].message.audio
    assert audio is not None
    return audio.transcript, audio.data


async def answers(system: System) -> list[Any]:
    """To several requests for speech and several questions, all at once."""
    async with system.async_client() as client, asyncio.TaskGroup() as group:
        tasks: list[asyncio.Task[Any]] = [group.create_task(speak(client, text)) for text in SPOKEN]
        tasks += [group.create_task(converse(client, question)) for question in ASKED]
    return [task.result() for task in tasks]


def differing(found: list[Any], expected: list[Any]) -> list[int]:
    return [at for at, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other]


def pairs(system: System) -> set[tuple[str, str]]:
    """Versions of talker and codec that have answered a request together, of all requests up to now."""
    versions: dict[str, dict[str, str]] = {}
    for line in system.traces.read_text().splitlines():
        with contextlib.suppress(json.JSONDecodeError):  # the last line may be only half there
            span = json.loads(line)
            about = span["resource"]["attributes"]
            request_id = span["attributes"].get("omnistage.request_id", "")
            versions.setdefault(request_id, {})[about["service.name"]] = about["service.version"]
    return {(found["talker"], found["codec"]) for found in versions.values() if {"talker", "codec"} <= set(found)}


async def skipped(system: System, service: str, version: str) -> list[float]:
    """Of each instance of a version: messages that it did not know."""
    ports = [one["metrics_port"] for one in await processes(system, service) if one["version"] == version]
    return [await asyncio.to_thread(metric, port, "omnistage_skipped_messages_total") for port in ports]


async def code_of_pitched_speech(system: System) -> str | None:
    """What becomes of a request that only the newer release understands: its error code; None if it is answered."""
    async with system.async_client() as client:
        try:
            await speak(client, PLAIN[0], pitch=1.5)
        except openai.APIStatusError as error:
            return f"{error.status_code} {error.code}"
    return None


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
async def test_answers_are_the_same_whoever_is_newer(
    system: System, release: Release, expected: list[Any], arrangement: str
) -> None:
    wanted = ARRANGEMENTS[arrangement]
    await arrange(system, release, wanted)
    assert differing(await answers(system), expected) == []
    assert await code_of_pitched_speech(system) == PITCHED.get(arrangement, "400 unknown_parameter")
    assert differing(await answers(system), expected) == [], "nobody was harmed by it"
    for service, versions in wanted.items():
        assert await skipped(system, service, NEW) == [0] * versions.count(NEW)
        if NOW in versions:
            assert min(await skipped(system, service, NOW)) > 0, f"the older {service} met nothing that it did not know"


async def test_every_pair_of_versions_works_on_an_edge(system: System, release: Release, expected: list[Any]) -> None:
    await arrange(system, release, MIXED)
    every = {(talker, codec) for talker in (NOW, NEW) for codec in (NOW, NEW)}
    async with asyncio.timeout(PATIENCE_S):
        while not every <= pairs(system):
            assert differing(await answers(system), expected) == []


async def speak_in_parts(client: openai.AsyncOpenAI, text: str, began: asyncio.Event) -> bytes:
    """As `speak`; `began` is set with the first bytes."""
    request = client.audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=text, response_format="pcm", extra_body={"seed": 7}
    )
    sound = b""
    async with request as answer:
        async for part in answer.iter_bytes():
            sound += part
            began.set()
    return sound


@pytest.mark.parametrize("version", [NOW, NEW])
@pytest.mark.parametrize("service", ["talker", "codec"])
async def test_an_instance_of_the_other_version_goes_on_with_a_dead_ones_requests(
    system: System, release: Release, service: str, version: str
) -> None:
    await arrange(system, release, MIXED)
    async with system.async_client() as client:
        whole = await speak(client, LONG)
        begun = [asyncio.Event() for _ in range(4)]
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            tasks = [group.create_task(speak_in_parts(client, LONG, event)) for event in begun]
            for event in begun:
                await event.wait()
            (victim,) = [one for one in await processes(system, service) if one["version"] == version]
            assert victim["running"], "it has nothing to lose"
            psutil.Process(victim["pid"]).kill()
    assert [at for at, task in enumerate(tasks) if task.result() != whole] == []
    async with asyncio.timeout(PATIENCE_S):
        while {one["state"] for one in await processes(system, service)} != {"ready"}:
            await asyncio.sleep(0.2)
    assert sorted(one["version"] for one in await processes(system, service)) == sorted(MIXED[service])


async def submit(bus: Bus, request_id: str) -> None:
    """Work for the talker that needs the newer release, as its gateway would publish it."""
    work = SpeakText(
        request_id=request_id,
        pipeline="speech",
        node="talker",
        route={"talker": "heart", "codec": "heart-wave"},
        speech=SpeechOptions(voice="heart", seed=7),
        text=PLAIN[0],
    )
    headers = Meta(deadline=time.time() + PATIENCE_S, contract=NEXT).to_headers()
    await bus.publish_work(bus.subjects.work("talker", "heart", request_id), encode(work), headers)


async def holders(bus: Bus, request_id: str) -> dict[str, list[str]]:
    """Who held a request at talker and codec, one after the other, once it is done; and nothing of it stays."""
    logs = {
        "talker": bus.subjects.feed("talker", "heart", request_id, "talker-codec"),
        "codec": bus.subjects.out("codec", "heart-wave", request_id, "codec-gateway"),
    }
    found: dict[str, list[str]] = {}
    for stage, subject in logs.items():
        log = await bus.follow(subject)
        async with asyncio.timeout(PATIENCE_S):
            async for message in log:
                record = decode_record(message.body)
                assert not isinstance(record, Failed), record
                if isinstance(record, Opened):
                    found.setdefault(stage, []).append(record.instance)
                elif isinstance(record, End):
                    break
        await log.close()
    await bus.send(bus.subjects.ctl_request(request_id), encode(Forget(request_id=request_id)))
    await bus.purge_request(request_id)
    return found


async def test_work_for_the_newer_release_goes_to_its_instances(system: System, release: Release) -> None:
    await arrange(system, release, MIXED)
    newer = {
        service: [one["instance"] for one in await processes(system, service) if one["version"] == NEW]
        for service in MIXED
    }
    async with system.bus() as bus, asyncio.timeout(PATIENCE_S):
        left_to_others = 0.0
        for number in range(1000):
            wave = [f"later-{number}-{one}" for one in range(4)]
            for request_id in wave:
                await submit(bus, request_id)
            for request_id in wave:
                assert await holders(bus, request_id) == newer
            ports = [one["metrics_port"] for one in await processes(system, "talker") if one["version"] == NOW]
            left_to_others = await asyncio.to_thread(metric, ports[0], "omnistage_work_for_later_versions_total")
            if left_to_others:
                break
    assert left_to_others > 0, "the older talker was never offered any"


async def test_work_for_the_newer_release_waits_for_it_and_the_set_up_stays_the_newer_ones(
    system: System, release: Release
) -> None:
    await arrange(system, release, MIXED)
    await arrange(system, release, {"codec": (NOW, NOW), "talker": (NOW, NOW)})
    stream = Subjects(system.state.namespace).stream(WORK)
    async with jetstream(system.state) as js:
        for consumer in ("talker-heart", "codec-heart-wave"):
            config = (await js.consumer_info(stream, consumer)).config
            assert config.max_ack_pending == BusOptions().max_ack_pending + 1, "an older process has changed it"
            assert (config.metadata or {})[VERSION_KEY] == str(TOPOLOGY + 1)
    async with system.bus() as bus:
        await submit(bus, "patient")
        await asyncio.sleep(2)
        assert await bus.read(bus.subjects.feed("talker", "heart", "patient", "talker-codec")) == []
        async with system.async_client() as client:
            assert len(await speak(client, PLAIN[0])) > 1000, "nobody is held up by it"
        await arrange(system, release, MIXED)
        found = await holders(bus, "patient")
    assert {stage: len(instances) for stage, instances in found.items()} == {"talker": 1, "codec": 1}


async def test_everything_is_upgraded_under_load_without_a_failed_request(
    system: System, release: Release, expected: list[Any]
) -> None:
    await arrange(system, release, {"codec": (NOW, NOW), "talker": (NOW, NOW), "thinker": (NOW,), "gateway": (NOW,)})
    over = asyncio.Event()

    async def keep_asking(client: openai.AsyncOpenAI, at: int) -> int:
        done = 0
        while not over.is_set():
            asked = speak(client, SPOKEN[at]) if at < len(SPOKEN) else converse(client, ASKED[at - len(SPOKEN)])
            assert await asked == expected[at]
            done += 1
        return done

    # The official client's default of two retries: a connection that was kept open may be closed by the gateway that
    # leaves while a request is on its way.
    async with system.async_client(max_retries=2) as client, asyncio.TaskGroup() as group:
        asking = [group.create_task(keep_asking(client, at)) for at in (0, 1, len(SPOKEN))]
        try:
            command = ("restart", *UPGRADE, "--python", str(release.python))
            await asyncio.to_thread(system.omnistage, *command, timeout_s=400.0)
        finally:
            over.set()
    assert min(task.result() for task in asking) >= 2
    for service in UPGRADE:
        after = await processes(system, service)
        assert {(process["version"], process["contract"], process["state"]) for process in after} == {
            (NEW, f"1.{NEXT}", "ready")
        }
    assert await code_of_pitched_speech(system) is None
    assert differing(await answers(system), expected) == []
