"""What can be seen of a request, and what must not."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.inspection import metrics_page
from tests.support.system import System

from omnistage.observability import names

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

CANARY = "Xylophones tickle zebras"


def speak_and_chat(system: System, text: str) -> None:
    client = system.client()
    client.audio.speech.create(model="tts-1", voice="alloy", input=text)
    client.chat.completions.create(
        model="gpt-4o-audio-preview",
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
        max_completion_tokens=12,
        messages=[{"role": "user", "content": text}],
    )


def spans(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def of_request(system: System, request_id: str) -> list[dict[str, Any]]:
    """Spans of a request, those of its parts included."""
    return [
        span
        for span in spans(system.traces)
        if str(span["attributes"].get(names.ATTR_REQUEST_ID, "")).startswith(request_id)
    ]


def service_of(span: dict[str, Any]) -> str:
    return str(span["resource"]["attributes"]["service.name"])


def test_a_spoken_answer_is_one_trace_through_all_four_services(system: System) -> None:
    answer = system.client().chat.completions.with_raw_response.create(
        model="gpt-4o-audio-preview",
        modalities=["text", "audio"],
        audio={"voice": "alloy", "format": "wav"},
        max_completion_tokens=12,
        messages=[{"role": "user", "content": "Say hello."}],
    )
    request_id = answer.headers["x-request-id"]
    everyone = {"gateway", "thinker", "talker", "codec"}
    # A stage ends its span after its answer has left, so the client may be here first.
    for _ in range(100):
        mine = of_request(system, request_id)
        if {service_of(span) for span in mine} == everyone:
            break
        time.sleep(0.05)
    assert {service_of(span) for span in mine} == everyone
    assert len({span["context"]["trace_id"] for span in mine}) == 1


def test_the_span_and_the_log_of_a_stream_say_how_it_was_heard(system: System) -> None:
    create = system.client().audio.speech.with_raw_response.create
    answer = create(model="tts-1", voice="alloy", input="Good morning.", response_format="pcm")
    seconds = len(answer.content) / 48_000
    request_id = answer.headers["x-request-id"]
    for _ in range(100):
        mine = [span for span in of_request(system, request_id) if span["name"] == names.SPAN_REQUEST]
        if mine:
            break
        time.sleep(0.05)
    (span,) = mine
    assert span["attributes"][names.ATTR_AUDIO_S] == pytest.approx(seconds, abs=0.001)
    assert 0 < span["attributes"][names.ATTR_FIRST_AUDIO_S] < 60
    assert span["attributes"][names.ATTR_UNDERRUNS] >= 0
    (line,) = [line for line in system.logs().splitlines() if "audio_sent" in line and request_id in line]
    assert "underrun_s" in line


def test_every_registered_metric_is_exported_by_its_owner(system: System) -> None:
    speak_and_chat(system, "Good morning.")
    pages: dict[str, str] = {}
    for entry in system.status()["processes"]:
        if entry["metrics_port"]:
            pages[entry["service"]] = metrics_page(entry["metrics_port"])
    assert set(pages) == {"gateway", "thinker", "talker", "codec"}
    for metric in names.METRICS:
        owners = {"every": pages, "gateway": ["gateway"], "stage": ["thinker", "talker", "codec"]}[metric.owner]
        for service in owners:
            assert re.search(rf"^# TYPE {re.escape(metric.exposed)} ", pages[service], re.M), (service, metric.name)


def test_no_log_contains_what_a_client_said(system: System) -> None:
    client = system.client()
    speak_and_chat(system, CANARY)
    raw = client.with_options(max_retries=0)
    for path, body in (
        ("/audio/speech", {"model": "tts-1", "voice": CANARY, "input": CANARY}),
        ("/audio/speech", {"model": "tts-1", "voice": "alloy", "input": f"{CANARY} привет"}),
        ("/audio/speech", {"model": CANARY, "voice": "alloy", "input": CANARY, CANARY: 1}),
        ("/chat/completions", {"model": "smollm2", "messages": [{"role": CANARY, "content": CANARY}]}),
    ):
        with pytest.raises(Exception, match="Error code: 4"):
            raw.post(path, body=body, cast_to=object)
    logs = system.logs()
    assert len(logs) > 1000
    for word in CANARY.split():
        assert word.lower() not in logs.lower()
    for word in CANARY.split():
        assert word not in system.traces.read_text()
