"""What models.yaml may say of a codec engine, and what it is told when it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from omnistage.config import EngineSpec
from omnistage.errors import ConfigError, InvalidRequest
from omnistage.observability import Metrics
from omnistage_codec.bootstrap import load
from omnistage_codec.engine import CodecEngine


def spec(
    checkpoint: Path | None, *, slots: int = 8, devices: tuple[str, ...] = ("cpu",), **settings: Any
) -> EngineSpec:
    return EngineSpec(
        service="codec",
        engine="qwen3_tts",
        checkpoint=None if checkpoint is None else str(checkpoint),
        slots=slots,
        devices=devices,
        settings=settings,
    )


async def test_an_engine_of_the_family_loads_warms_and_closes(golden: Path) -> None:
    loaded = await load("voice", spec(golden / "custom_voice", batch_invariant=True), Metrics("codec", "test"))
    engine = loaded.engine
    assert isinstance(engine, CodecEngine)
    await engine.warm()
    assert loaded.gauges() == {"sample_rate_hz": 24000, "frame_rate_hz": 12.5}
    assert loaded.stalled_s() == 0.0
    assert engine.decoder.slots == 8
    with pytest.raises(InvalidRequest, match="clones no voices"):
        _ = engine.references
    await engine.close()


@pytest.mark.parametrize("slots", [1, 2, 64])
async def test_any_number_of_slots_goes_with_the_defaults(golden: Path, slots: int) -> None:
    loaded = await load("voice", spec(golden / "custom_voice", slots=slots), Metrics("codec", "test"))
    await loaded.engine.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"coalesce_target": 9}, r"coalesce_target: 9 is more than the 8 slots"),
        ({"coalesce_target": 0}, r"engines\.voice\.settings\.coalesce_target"),
        ({"coalesce_window_ms": -1}, r"engines\.voice\.settings\.coalesce_window_ms"),
        ({"coalesce_window_ms": float("nan")}, r"coalesce_window_ms"),
        ({"coalesce_window_ms": float("inf")}, r"coalesce_window_ms"),
        ({"first_frames": 0}, r"first_frames"),
        ({"max_frames": 0}, r"max_frames"),
        ({"step_frames": 0}, r"step_frames"),
        ({"dtype": "int4"}, r"dtype"),
        ({"reference_cache_mb": -1}, r"reference_cache_mb"),
        ({"reference_max_s": float("inf")}, r"reference_max_s"),
        ({"colour": "red"}, r"colour"),
        ({"devices": ("cpu", "cpu")}, r"engines\.voice\.devices"),
    ],
)
async def test_wrong_settings_are_named(golden: Path, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await load("voice", spec(golden / "custom_voice", **settings), Metrics("codec", "test"))


async def test_a_checkpoint_is_needed_and_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a checkpoint"):
        await load("voice", spec(None), Metrics("codec", "test"))
    with pytest.raises(ConfigError, match="does not exist"):
        await load("voice", spec(tmp_path / "none"), Metrics("codec", "test"))


async def test_families_without_a_network_take_none_of_its_settings() -> None:
    wrong = EngineSpec(service="codec", engine="hibari", settings={"dtype": "float32"})
    with pytest.raises(ConfigError, match="dtype"):
        await load("voice", wrong, Metrics("codec", "test"))
