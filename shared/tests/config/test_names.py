"""Names that others give lead nowhere but where they belong: one check for each kind, and no text gets past it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from omnistage.config import ModelsFile, ServiceSettings
from omnistage.config.checkpoints import locate_checkpoint
from omnistage.config.paths import inside
from omnistage.errors import ConfigError
from omnistage.subjects import Subjects, parse, token
from omnistage.tensors.arena import is_partition_name
from omnistage.transport.checks import check_key

EVIL = (
    "..", ".", "", "/", "../x", "a/../../x", "/etc/passwd", "a//b", "a/", "./a", "a/./b", "a\\b", "a\0b", "a\nb",
    "C:\\x", "~root", "a*", ">", "a.b", "a b", "%2e%2e", "\u2025", "．．", "a\u202eb", "x" * 300, "A", "a\n",
)  # fmt: skip

texts = st.one_of(
    st.text(max_size=40),
    st.text(alphabet="./\\~ab\0\n", max_size=12),
    st.lists(st.sampled_from(["..", ".", "a", "", "b.c", "~"]), max_size=5).map("/".join),
    st.sampled_from(EVIL),
)


def within(folder: Path, path: Path) -> bool:
    return Path(os.path.normpath(path)).is_relative_to(folder) and path != folder


@given(texts)
def test_a_token_of_a_subject_is_a_plain_word(name: str) -> None:
    """Model and engine keys, instances, request ids: all that stands in subjects, keys and names of logs."""
    try:
        assert token(name) == name
    except ConfigError:
        return
    assert 1 <= len(name) <= 64
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789_-")
    assert within(Path("/logs"), Path("/logs") / f"{name}.log")


@given(texts, texts)
def test_no_text_widens_a_subject(model: str, request_id: str) -> None:
    try:
        subject = Subjects("t").work("talker", model, request_id)
    except ConfigError:
        return
    parsed = parse(subject)
    assert (parsed.model, parsed.request_id, parsed.stage) == (model, request_id, "talker")


@given(texts)
@example("assets/hibari.onnx")
@example("model-00001-of-00002.safetensors")
def test_a_file_of_a_checkpoint_lies_inside_it(name: str) -> None:
    folder = Path("/models/voice")
    try:
        path = inside(folder, name)
    except ConfigError:
        return
    assert within(folder, path)
    assert path.relative_to(folder).as_posix() == name


@pytest.mark.parametrize("name", ["assets/hibari.onnx", "model.safetensors", ".hidden", "a-b_c/D 1+2.bin", "x.y.z"])
def test_usual_names_of_files_are_allowed(name: str) -> None:
    assert inside(Path("/m"), name) == Path("/m") / name


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "..", "", "assets/../../x"])
def test_a_checkpoint_in_a_package_does_not_lead_out_of_it(name: str) -> None:
    with pytest.raises(ConfigError):
        locate_checkpoint(f"package:omnistage/{name}")


@given(texts)
def test_instances_and_namespaces_are_tokens(name: str) -> None:
    """They stand in names of arena partitions, of logs, and in subjects."""
    for field in ("instance", "namespace"):
        try:
            given: dict[str, Any] = {field: name}
            settings = ServiceSettings(**given)
        except ValueError:
            continue
        assert getattr(settings, field) == name
        assert name == "" if field == "instance" and not name else token(name) == name


@given(texts)
def test_keys_of_models_and_engines_are_tokens(key: str) -> None:
    body = {
        "version": 1,
        "engines": {key: {"service": "thinker", "engine": "torch"}},
        "models": {key: {"pipeline": "text", "nodes": {"thinker": key}}},
    }
    try:
        read = ModelsFile.model_validate(body)
    except (ConfigError, ValueError):
        return
    assert [token(name) for name in (*read.engines, *read.models)] == [key, key]


@given(texts)
def test_a_partition_is_a_file_of_its_folder(name: str) -> None:
    if is_partition_name(name):
        assert Path(name).name == name


@given(texts)
def test_keys_of_buckets_have_no_wildcards_and_no_empty_parts(key: str) -> None:
    try:
        check_key(key)
    except ConfigError:
        return
    assert not set(key) & set("*> /\\\0\n")
    assert all(key.split("."))


@pytest.mark.parametrize("name", EVIL)
def test_what_is_evil_is_refused_by_every_check(name: str) -> None:
    with pytest.raises(ConfigError):
        token(name)
    assert not is_partition_name(name)
    assert not is_partition_name(f"{name}.arena")
