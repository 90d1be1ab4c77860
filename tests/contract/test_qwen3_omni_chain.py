"""Thinker, talker and codec of Qwen3-Omni fit together: what each hands on makes the recorded waveform in the end."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from omnistage.ar.qwen3.positions import Media
from omnistage.parity import Tolerance
from omnistage_codec.models import ModelOptions
from omnistage_codec.models.qwen3_omni import load as load_wave
from omnistage_talker.models.qwen3.replay import greedy, run_requests
from omnistage_talker.models.qwen3_omni.prompt import Heard
from omnistage_talker.models.qwen3_omni.prompt import Prompt as SpokenPrompt
from omnistage_talker.models.qwen3_omni.talker import load_talker
from omnistage_thinker.models.qwen3_omni.checkpoint import load_thinker
from omnistage_thinker.models.qwen3_omni.prompt import Towers, make_prompt
from omnistage_thinker.models.qwen3_omni.replay import run_prompts

SERVICES = Path(__file__).parents[2] / "services"
END_OF_TURN = 274


def _parts(service: str) -> Path:
    return SERVICES / service / "tests" / "fixtures" / "qwen3_omni"


@pytest.mark.parametrize("seed", range(3))
def test_from_token_ids_to_the_recorded_waveform(seed: int) -> None:
    thinker, talker = load_thinker(_parts("thinker") / "model"), load_talker(_parts("talker") / "model")
    wave = load_wave(ModelOptions(checkpoint=_parts("codec") / "model"))
    recorded = load_file(_parts("codec") / "fixtures" / "text.safetensors")
    ids: list[int] = load_file(_parts("thinker") / "fixtures" / "text.safetensors")["input_ids"].tolist()

    with torch.inference_mode():
        prompt = make_prompt(thinker, ids, Media(), Towers())
        text = talker.config.text
        marks = thinker.embed(torch.tensor([text.tts_bos, text.tts_eos, text.tts_pad]))
    (answer,) = run_prompts(thinker, [(ids, prompt)], max_new_tokens=16, stop=END_OF_TURN)

    count = len(ids)
    heard = Heard(ids=ids, embeds=answer.embeds[:count], accepted=answer.accepted[:count], marks=marks, media=Media())
    spoken, words = SpokenPrompt(talker, heard, "Ethan"), answer.embeds[count:]
    rng = np.random.default_rng(seed)
    while len(words):
        size = int(rng.integers(1, 4))
        spoken.add(words[:size])
        words = words[size:]
    spoken.finish()
    (frames,) = run_requests(talker, [spoken.request(greedy(1.05, min_frames=0))], 12)
    assert torch.equal(frames.codes, recorded["codes_rp105"])

    codes = np.ascontiguousarray(frames.codes.numpy().T)
    state, parts, start = wave.new_state(seed=0, voice=""), [], 0
    while start < len(codes):
        size = int(rng.integers(1, 4))
        end = start + size >= len(codes)
        chunk = codes[start : start + size]
        parts.append(wave.decode(state, chunk, segment=0, segment_frame=start, segment_end=end))
        start += size
    found = np.concatenate(parts)
    expected = recorded["waveform_rp105"].numpy()
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() <= Tolerance.WAVEFORM
