"""Talker and codec families agree on what their frames mean, though neither imports the other."""

from __future__ import annotations

import json
from pathlib import Path

from omnistage_codec.models import ModelOptions
from omnistage_codec.models import load_model as load_wave
from omnistage_codec.models import load_models as load_waves
from omnistage_codec.models.hibari import layout as read
from omnistage_codec.models.qwen3_tts import layout as tokens_read
from omnistage_talker.models.hibari import layout as written
from omnistage_talker.models.hibari.model import FACTS
from omnistage_talker.models.qwen3_tts import layout as tokens_written


def test_hibari_frames_are_read_as_they_are_written() -> None:
    assert read.LAYOUT == written.LAYOUT == FACTS.layout
    assert read.WIDTH == written.WIDTH == FACTS.frame_width
    assert tuple(read.BRANCHES) == tuple(written.BRANCHES)
    assert {name: read.columns(name) for name in read.BRANCHES} == {
        name: written.columns(name) for name in written.BRANCHES
    }
    assert read.F0_COLUMN == written.F0_COLUMN


def test_the_codec_expects_what_the_talker_announces() -> None:
    facts = load_wave("hibari").facts
    assert (facts.layout, facts.frame_width, facts.frame_dtype) == (FACTS.layout, FACTS.frame_width, FACTS.frame_dtype)
    assert facts.frame_rate_hz == FACTS.frame_rate_hz
    assert facts.sample_rate_hz == facts.frame_rate_hz * facts.samples_per_frame


def test_qwen3_tts_tokens_are_read_as_they_are_written() -> None:
    assert tokens_read.LAYOUT == tokens_written.LAYOUT
    parts = Path(__file__).parents[2] / "services" / "codec" / "tests" / "fixtures" / "qwen3_tts"
    options = ModelOptions(checkpoint=parts / "custom_voice", references=False)
    facts = load_waves("qwen3_tts", options).wave.facts
    talker = json.loads((parts / "custom_voice" / "config.json").read_text())["talker_config"]
    assert facts.layout == tokens_written.LAYOUT
    assert facts.frame_width == talker["num_code_groups"]
    assert facts.frame_rate_hz == tokens_written.FRAME_RATE_HZ
    assert facts.sample_rate_hz == facts.frame_rate_hz * facts.samples_per_frame
