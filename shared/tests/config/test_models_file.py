"""The models file: typed, checked as a whole, merged from overlays; every fault is named."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from omnistage.config import default_models_path, load_models, locate_checkpoint
from omnistage.config.models_file import merge
from omnistage.config.yaml_file import read_mapping
from omnistage.errors import ConfigError

BASE: dict[str, Any] = {
    "version": 1,
    "engines": {
        "heart": {"service": "talker", "engine": "hibari", "checkpoint": "package:hibari/x"},
        "wave": {"service": "codec", "engine": "hibari", "slots": 2},
    },
    "models": {
        "voice": {
            "pipeline": "speech",
            "nodes": {"talker": "heart", "codec": "wave"},
            "aliases": ["tts-1"],
            "voices": {"alloy": "heart"},
            "default_voice": "alloy",
        }
    },
}


def _write(path: Path, content: Any) -> Path:
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def test_the_delivered_file_is_sound(root_models: Path) -> None:
    models = load_models((root_models,))
    assert models.names()["tts-1"] == "hibari-heart"
    assert set(models.of_service("talker")) == {"heart"}


@pytest.fixture
def root_models() -> Path:
    path = default_models_path()
    assert path.exists()
    return path


def test_questions_are_answered(tmp_path: Path) -> None:
    models = load_models((_write(tmp_path / "m.yaml", BASE),))
    assert models.names() == {"voice": "voice", "tts-1": "voice"}
    assert models.models["voice"].graph.name == "speech"
    assert models.engines["wave"].slots == 2
    assert set(models.of_service("codec", ["wave"])) == {"wave"}
    assert models.of_service("thinker") == {}
    with pytest.raises(ConfigError, match="'heart' is not one of the codec's: wave"):
        models.of_service("codec", ["heart"])


def test_overlays_are_merged_in_order(tmp_path: Path) -> None:
    first = _write(tmp_path / "1.yaml", BASE)
    second = _write(tmp_path / "2.yaml", {"engines": {"wave": {"slots": 9}}, "models": {"voice": {"aliases": None}}})
    third = _write(tmp_path / "3.yaml", {"engines": {"wave": {"slots": 5}}})
    models = load_models((first, second, third))
    assert models.engines["wave"].slots == 5
    assert models.engines["wave"].engine == "hibari"
    assert models.names() == {"voice": "voice"}


def test_merging_leaves_its_inputs_alone() -> None:
    base, overlay = {"a": {"b": 1, "c": [1, 2]}}, {"a": {"b": None, "c": [3]}, "d": 1}
    before = copy.deepcopy((base, overlay))
    assert merge(base, overlay) == {"a": {"c": [3]}, "d": 1}
    assert (base, overlay) == before
    assert merge({"a": 1}, {"a": {"b": 2}}) == {"a": {"b": 2}}


@pytest.mark.parametrize(
    ("path", "value", "fault"),
    [
        (("version",), 2, "version"),
        (("extra",), 1, "extra"),
        (("engines", "wave", "slot"), 3, "engines.wave.slot"),
        (("engines", "wave", "slots"), 0, "engines.wave.slots"),
        (("engines", "wave", "service"), "gateway", "engines.wave.service"),
        (("engines", "Wave"), {"service": "codec", "engine": "hibari"}, "engines.Wave"),
        (("engines", "wave\n"), {"service": "codec", "engine": "hibari"}, "may have only"),
        (("models", "a.b"), BASE["models"]["voice"], "models.a.b"),
        (("models", "voice", "pipeline"), "nonsense", "unknown pipeline 'nonsense'"),
        (("models", "voice", "nodes", "thinker"), "heart", "models.voice.nodes.thinker"),
        (("models", "voice", "nodes"), {"talker": "heart"}, "node 'codec' of pipeline 'speech' has no engine"),
        (("models", "voice", "nodes", "codec"), "gone", "there is no engine 'gone'"),
        (("models", "voice", "nodes", "codec"), "heart", "engine 'heart' is not a codec's"),
        (("models", "voice", "default_voice"), "nova", "default_voice"),
        (("models", "voice", "deadline_s"), 0, "deadline_s"),
        (("models", "other"), BASE["models"]["voice"], "'tts-1' already means"),
    ],
)
def test_a_fault_is_named_with_its_place(tmp_path: Path, path: tuple[str, ...], value: Any, fault: str) -> None:
    content = copy.deepcopy(BASE)
    place = content
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file = _write(tmp_path / "m.yaml", content)
    with pytest.raises(ConfigError) as caught:
        load_models((file,))
    assert fault in caught.value.message
    assert str(file) in caught.value.message


@pytest.mark.parametrize(
    ("text", "fault"), [("a: [", "not YAML"), ("- a", "a mapping was expected"), ("", "a mapping")]
)
def test_what_is_no_models_file_is_refused(tmp_path: Path, text: str, fault: str) -> None:
    file = tmp_path / "m.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=fault):
        load_models((file,))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"version: 1\nengines: {}\nmodels: {}\nengines: {a: 1}\n", "line 4: the key 'engines' stands twice"),
        (b"version: 1\nmodels:\n  m: {aliases: [a],\n      aliases: [b]}\n", "line 4: the key 'aliases' stands twice"),
        (b"version: 1\ndescription: caf\xe9\n", "not UTF-8 at byte 27"),
        (b"version: [1\nmodels: {}\n", "not YAML"),
    ],
)
def test_a_file_that_cannot_be_meant_is_one_line(tmp_path: Path, content: bytes, fault: str) -> None:
    file = tmp_path / "m.yaml"
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_models((file,))
    assert fault in caught.value.message
    assert str(file) in caught.value.message
    assert "\n" not in caught.value.message


def test_a_merged_mapping_may_override_what_it_takes_over(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("b: {<<: &a {<<: {x: 1, y: 2}, x: 3}, x: 4}\nc: *a\n", encoding="utf-8")
    assert read_mapping(file) == {"b": {"x": 4, "y": 2}, "c": {"x": 3, "y": 2}}


def test_all_faults_are_named_at_once(tmp_path: Path) -> None:
    content = copy.deepcopy(BASE)
    content["models"]["voice"] |= {"default_voice": "nova", "nodes": {"talker": "gone", "codec": "heart"}}
    content["models"]["other"] = BASE["models"]["voice"] | {"pipeline": "nonsense"}
    with pytest.raises(ConfigError) as caught:
        load_models((_write(tmp_path / "m.yaml", content),))
    for fault in ("'nova' is not in voices", "no engine 'gone'", "not a codec's", "models.other.pipeline", "'tts-1'"):
        assert fault in caught.value.message


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"gone\.yaml: No such file"):
        load_models((tmp_path / "gone.yaml",))


def test_yaml_cannot_build_objects(tmp_path: Path) -> None:
    file = tmp_path / "m.yaml"
    file.write_text("version: !!python/object/apply:os.getcwd []", encoding="utf-8")
    with pytest.raises(ConfigError, match="not YAML"):
        load_models((file,))


def test_checkpoints_are_found(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        locate_checkpoint(str(tmp_path))
    (tmp_path / "config.json").touch()
    assert locate_checkpoint(str(tmp_path)) == tmp_path
    assert locate_checkpoint("package:yaml/loader.py").name == "loader.py"
    for name, fault in (
        ("package:no_such_package/x", "not installed"),
        ("package:yaml/none.bin", "has no file"),
        ("package:../x", "not installed"),
        (str(tmp_path / "gone"), "does not exist"),
    ):
        with pytest.raises(ConfigError, match=fault):
            locate_checkpoint(name)
