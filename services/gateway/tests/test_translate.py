"""HTTP to contracts: what depends on the models file and on what engines announce."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from omnistage.config import ModelsFile, load_models
from omnistage.contracts import SpeakText
from omnistage.errors import InvalidRequest, NotFound
from omnistage_gateway.chat_voice import chat_voice
from omnistage_gateway.dispatch.fleet_table import EngineView
from omnistage_gateway.schemas.chat import ChatRequest
from omnistage_gateway.schemas.speech import SpeechRequest
from omnistage_gateway.served import Served, find_model, fingerprint, modalities
from omnistage_gateway.translate import as_seed, chat_job, derived_seed, speech_job


def models(**changes: Any) -> ModelsFile:
    """The default models file with changed fields of its voice model."""
    data = load_models().model_dump()
    data["models"]["hibari-heart"].update(changes)
    return ModelsFile.model_validate(data)


def speech(file: ModelsFile, **fields: Any) -> Any:
    request = SpeechRequest.model_validate({"model": "tts-1", "input": "Hi", "voice": "alloy", **fields})
    return speech_job(request, find_model(file, "tts-1"), EngineView(), seed=1, tenant="t")


def spoken(job: Any) -> SpeakText:
    work = job.plan.build("r1", "talker", {"talker": "heart"})
    assert isinstance(work, SpeakText)
    return work


def test_instructions_reach_a_model_that_takes_them() -> None:
    job = speech(models(accepts=("instructions",)), instructions="Whisper.")
    assert spoken(job).speech.instructions == "Whisper."


def test_the_input_limit_is_the_model_s() -> None:
    speech(models(max_input_chars=5), input="x" * 5)
    with pytest.raises(InvalidRequest, match="at most 5") as caught:
        speech(models(max_input_chars=5), input="x" * 6)
    assert caught.value.param == "input"


def test_a_voice_may_be_left_out_only_where_there_is_a_default() -> None:
    assert spoken(speech(models(), voice=None)).speech.voice == "heart"
    with pytest.raises(InvalidRequest, match="Missing") as caught:
        speech(models(default_voice=None), voice=None)
    assert (caught.value.param, caught.value.code) == ("voice", "missing_required_parameter")


def test_deadline_tenant_and_seed() -> None:
    job = speech(models(deadline_s=9.0))
    assert (job.plan.deadline_s, job.plan.tenant, job.plan.priority) == (9.0, "t", "interactive")
    assert spoken(job).speech.seed == 1


@pytest.mark.parametrize(
    ("facts", "speed", "native"),
    [
        ({}, 2.0, 1.0),
        ({"speed_min": 0.5}, 0.25, 0.5),
        ({"speed_min": 0.5, "speed_max": 2.0}, 1.5, 1.5),
        ({"speed_min": 0.5, "speed_max": 2.0}, 4.0, 2.0),
    ],
)
def test_speed_is_shared_between_voice_and_stretch(facts: dict[str, float], speed: float, native: float) -> None:
    request = SpeechRequest.model_validate({"model": "m", "input": "Hi", "voice": "alloy", "speed": speed})
    job = speech_job(request, find_model(models(), "tts-1"), EngineView(facts=facts), seed=1, tenant="t")
    assert spoken(job).speech.speed == native
    assert job.tempo == pytest.approx(speed / native)


def test_a_model_that_only_writes_refuses_audio_and_says_so() -> None:
    data = load_models().model_dump()
    data["models"]["smollm2"].update(pipeline="text", nodes={"thinker": "smollm2"}, voices={}, default_voice=None)
    served = find_model(ModelsFile.model_validate(data), "gpt-4o")
    assert modalities(served.spec) == ["text"]
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
    voice = partial(chat_voice, served, EngineView(), None, None)
    job = chat_job(ChatRequest.model_validate(body), served, (), voice, seed=1, tenant="t")
    assert job.plans[0].pipeline.name == "text"
    audio = {**body, "modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
    with pytest.raises(InvalidRequest, match="does not speak") as caught:
        chat_job(ChatRequest.model_validate(audio), served, (), voice, seed=1, tenant="t")
    assert caught.value.param == "modalities"


def test_seeds() -> None:
    assert (as_seed(-1), as_seed(2**62), as_seed(-(2**63))) == (2**63 - 1, 2**62, 0)
    derived = [derived_seed(5, index) for index in range(8)]
    assert derived[0] == 5
    assert len(set(derived)) == 8
    assert all(0 <= seed < 2**63 for seed in derived)
    assert derived == [derived_seed(5, index) for index in range(8)]


def test_aliases_mean_the_model_and_unknown_names_nothing() -> None:
    assert find_model(models(), "gpt-4o-mini-tts") == Served("hibari-heart", models().models["hibari-heart"])
    with pytest.raises(NotFound):
        find_model(models(), "TTS-1")


def test_the_fingerprint_changes_with_what_can_change_an_answer() -> None:
    base = fingerprint(models(), "hibari-heart", "0.1.0")
    assert base == fingerprint(models(), "hibari-heart", "0.1.0")
    assert base != fingerprint(models(), "hibari-heart", "0.1.1")
    assert base != fingerprint(models(max_input_chars=7), "hibari-heart", "0.1.0")
    assert base != fingerprint(models(), "smollm2", "0.1.0")
