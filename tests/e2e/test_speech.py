"""Text in, speech out: understood by a recognizer, the same in every format and shape."""

from __future__ import annotations

import base64
import json

import numpy as np
import pytest
from tests.support.sentences import PARAGRAPH, PLAIN, VARIED
from tests.support.speech import Samples, decode, distance, recognize, words
from tests.support.system import System

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

RATE_HZ = 24_000
FORMATS = {"mp3": 0.1, "opus": 0.05, "aac": 0.1, "flac": 0.05, "wav": 0.05}
"""Seconds by which a format's duration may differ; mp3's and aac's encoders pad."""


def speak(system: System, text: str, **options: object) -> bytes:
    asked = {"model": "tts-1", "voice": "alloy", "response_format": "pcm", **options}
    return system.client().audio.speech.create(input=text, **asked).read()  # type: ignore[arg-type]


def samples(pcm: bytes) -> Samples:
    return np.frombuffer(pcm, "<i2")


def test_plain_sentences_are_understood(system: System) -> None:
    said = heard = 0
    for text in PLAIN:
        spoken = recognize(samples(speak(system, text)), RATE_HZ)
        wrong = distance(words(text), words(spoken))
        assert wrong <= len(words(text)) / 2, f"{text!r} was heard as {spoken!r}"
        said += len(words(text))
        heard += len(words(text)) - wrong
    assert heard / said >= 0.9


@pytest.mark.parametrize("text", VARIED, ids=range(len(VARIED)))
def test_anything_english_is_spoken(system: System, text: str) -> None:
    seconds = len(samples(speak(system, text))) / RATE_HZ
    assert 0.15 * len(text.split()) < seconds < 1.2 * len(text.split())


def test_a_long_paragraph_is_complete(system: System) -> None:
    pcm = samples(speak(system, PARAGRAPH))
    heard = words(recognize(pcm, RATE_HZ))
    assert distance(words(PARAGRAPH), heard) <= 0.25 * len(words(PARAGRAPH))
    assert {"waste", "leaving"} & set(heard[-12:])


def test_every_format_lasts_equally_long(system: System) -> None:
    text = PLAIN[0]
    expected = len(samples(speak(system, text, extra_body={"seed": 1}))) / RATE_HZ
    for name, tolerance in FORMATS.items():
        body = speak(system, text, response_format=name, extra_body={"seed": 1})
        decoded, rate = decode(body)
        assert abs(len(decoded) / rate - expected) <= tolerance, name


def test_events_and_audio_give_the_same_samples(system: System) -> None:
    text, extra = " ".join(PLAIN[:3]), {"seed": 7}
    plain = speak(system, text, extra_body=extra)
    with system.client().audio.speech.with_streaming_response.create(
        model="tts-1", voice="alloy", input=text, response_format="pcm", stream_format="sse", extra_body=extra
    ) as answer:
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: {")]
    assert [event["type"] for event in events[:-1]] == ["speech.audio.delta"] * (len(events) - 1)
    assert events[-1]["type"] == "speech.audio.done"
    assert events[-1]["usage"]["total_tokens"] > 0
    assert b"".join(base64.b64decode(event["audio"]) for event in events[:-1]) == plain


def test_equal_seeds_give_equal_bytes(system: System) -> None:
    first, again, other = (speak(system, PLAIN[1], extra_body={"seed": seed}) for seed in (5, 5, 6))
    assert first == again
    assert first != other
    assert len(first) == len(other)


@pytest.mark.parametrize("speed", [0.25, 0.5, 0.8, 1.5, 2.0, 3.0, 4.0])
def test_speed_changes_the_duration(system: System, speed: float) -> None:
    text = " ".join(PLAIN[:2])
    base = len(samples(speak(system, text)))
    assert len(samples(speak(system, text, speed=speed))) == pytest.approx(base / speed, rel=0.03)


def test_audio_streams_without_a_length(system: System) -> None:
    with system.client().audio.speech.with_streaming_response.create(
        model="gpt-4o-mini-tts", voice="nova", input=PARAGRAPH, response_format="pcm"
    ) as answer:
        assert "content-length" not in answer.headers
        assert answer.headers["transfer-encoding"] == "chunked"
        pieces = [len(piece) for piece in answer.iter_bytes()]
    assert len(pieces) > 5
