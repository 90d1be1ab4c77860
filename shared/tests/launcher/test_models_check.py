"""`omnistage models check`: explains, and names faults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from omnistage.config import load_models
from omnistage.launcher.models_check import explain
from omnistage_codec.engines import ENGINES

ROOT = Path(__file__).parents[3]

HERE = "package:hibari/assets/hibari.onnx"

FILE = """
version: 1
engines:
  t: {{service: talker, engine: hibari, checkpoint: "{checkpoint}", slots: 3}}
  c: {{service: codec, engine: hibari}}
  spare: {{service: codec, engine: hibari}}
models:
  voice-one:
    description: a voice
    pipeline: speech
    nodes: {{talker: t, codec: c}}
    aliases: [tts-1, tts-2]
    voices: {{v: heart, w: heart}}
    default_voice: v
    max_input_chars: 99
"""


def written(folder: Path, checkpoint: str) -> Path:
    path = folder / "models.yaml"
    path.write_text(FILE.format(checkpoint=checkpoint))
    return path


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "omnistage.launcher", "models", "check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)


def test_the_default_file_has_no_faults() -> None:
    told = run()
    assert told.returncode == 0, told.stdout + told.stderr
    assert told.stdout.splitlines()[-1] == "no faults"
    assert told.stdout == run("deploy/models.yaml").stdout


def test_everything_is_explained(tmp_path: Path) -> None:
    (tmp_path / "voice.onnx").touch()
    told = run(str(written(tmp_path, str(tmp_path / "voice.onnx"))))
    assert told.returncode == 0
    lines = [" ".join(line.split()) for line in told.stdout.splitlines()]
    for line in (
        "model voice-one: a voice",
        "also called tts-1, tts-2",
        "pipeline speech (Text in, speech out)",
        "talker -> codec: FrameChunk",
        "node talker: engine t",
        "voices v*, w",
        "limits 99 characters of input, 1024 tokens of output, 300 s",
        "engine t: hibari on talker",
        "devices cpu; 3 requests at once",
        f"found: {tmp_path / 'voice.onnx'}",
        "checkpoint none given",
        "engine spare: hibari on codec (no model uses it)",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("checkpoint", "fault"),
    [
        ("package:no_such_package/x", "the package 'no_such_package' is not installed"),
        ("package:omnistage/no.gguf", "the package 'omnistage' has no file 'no.gguf'"),
        ("/no/such/folder", "/no/such/folder does not exist"),
    ],
)
def test_a_missing_checkpoint_is_a_fault(tmp_path: Path, checkpoint: str, fault: str) -> None:
    told = run(str(written(tmp_path, checkpoint)))
    assert told.returncode == 1
    assert f"fault: engines.t.checkpoint: checkpoint {checkpoint}: {fault}" in told.stdout.splitlines()
    assert f"MISSING: checkpoint {checkpoint}: {fault}" in told.stdout


def test_a_wrong_file_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(FILE.format(checkpoint="x").replace("slots: 3", "slotz: 3"))
    told = run(str(path))
    assert told.returncode == 1
    assert "fault: engines.t.slotz: Extra inputs are not permitted" in told.stdout.splitlines()
    path.write_text("version: 2")
    told = run(str(path))
    assert told.returncode == 1
    assert told.stderr.startswith(f"omnistage: {path}: version: Input should be 1; engines: Field required")
    assert len(told.stderr.splitlines()) == 1
    assert run(str(tmp_path / "none.yaml")).stderr.endswith("No such file or directory\n")


def test_what_is_right_is_checked_though_something_else_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(
        FILE.format(checkpoint="/no/such/folder")
        + """
  two: {pipeline: speech, nodes: {talker: t, codec: c}, max_input_chars: many}
  three: {pipeline: speech, nodes: {talker: t, codec: lost}}
  four: {pipeline: speech, nodes: {talker: broken, codec: c}}
"""
    )
    overlay = tmp_path / "more.yaml"
    overlay.write_text("engines: {broken: {service: talker, engine: hibari, slots: 0}}")
    told = run(str(path), str(overlay))
    assert told.returncode == 1
    assert [line for line in told.stdout.splitlines() if line.startswith("fault")] == [
        "fault: engines.broken.slots: Input should be greater than or equal to 1",
        "fault: models.two.max_input_chars: Input should be a valid integer, unable to parse string as an integer",
        "fault: models.three.nodes.codec: there is no engine 'lost'",
        "fault: engines.t.checkpoint: checkpoint /no/such/folder: /no/such/folder does not exist",
    ]
    assert [line for line in told.stdout.splitlines() if line.startswith("model ")] == ["model voice-one: a voice"]


def test_overlays_are_laid_over(tmp_path: Path) -> None:
    base = written(tmp_path, HERE)
    overlay = tmp_path / "more.yaml"
    overlay.write_text("engines: {spare: null}\nmodels: {voice-one: {aliases: [other]}}\n")
    told = run(str(base), str(overlay))
    assert told.returncode == 0
    assert "spare" not in told.stdout
    assert "also called  other" in told.stdout


def test_a_service_that_is_not_installed_is_a_fault(tmp_path: Path) -> None:
    models = load_models([written(tmp_path, HERE)])
    assert explain(models).faults == []
    engine = models.engines["c"].model_copy(update={"service": "dit"})
    changed = models.model_copy(update={"engines": {**models.engines, "c": engine}})
    assert explain(changed).faults == ["the service 'dit' is not installed"]


THINKER = """
version: 1
engines:
  l: {{service: thinker, engine: {engine}, checkpoint: {checkpoint}}}
  t: {{service: talker, engine: hibari, checkpoint: package:hibari/assets/hibari.onnx}}
  c: {{service: codec, engine: hibrai}}
models:
  m: {{pipeline: omni, nodes: {{thinker: l, talker: t, codec: c}}, voices: {{heart: heart, alloy: hart}}}}
"""


def test_all_faults_of_engines_and_checkpoints_are_told_and_voices_warned_of(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "x").touch()
    path.write_text(THINKER.format(engine="vllm", checkpoint=tmp_path / "weights"))
    told = run(str(path))
    assert told.returncode == 1
    assert [line for line in told.stdout.splitlines() if line.startswith(("fault", "warning"))] == [
        "warning: models.m.voices.alloy: engine t has no voice 'hart'; there are: heart",
        "fault: engines.l.engine: the thinker has no 'vllm'; there are: torch",
        f"fault: engines.l.checkpoint: {tmp_path / 'weights'} has no config.json",
        f"fault: engines.c.engine: the codec has no 'hibrai'; there are: {', '.join(ENGINES)}",
    ]


def test_checkpoints_that_cannot_be_loaded_by_their_name(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.touch()
    path = tmp_path / "models.yaml"
    for checkpoint, fault in ((file, f"{file} is neither a .gguf file nor a folder"), ("null", "needs a checkpoint")):
        path.write_text(THINKER.format(engine="torch", checkpoint=checkpoint).replace("hibrai", "hibari"))
        faults = explain(load_models([path])).faults
        assert len(faults) == 1
        assert fault in faults[0]
    assert explain(load_models([written(tmp_path, str(file))])).faults == [
        f"engines.t.checkpoint: {file} is not an .onnx file"
    ]


def test_asking_the_services_loads_no_model_library() -> None:
    program = (
        "import sys; from omnistage.config import load_models; from omnistage.launcher.models_check import explain;"
        "assert explain(load_models()).faults == [];"
        "print(sorted({'torch', 'onnxruntime', 'transformers', 'hibari'} & set(sys.modules)))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert told.stdout == "[]\n"


def test_a_checkpoint_of_a_hub_is_not_downloaded_to_be_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNISTAGE_HUB_CACHE", str(tmp_path / "hub"))
    path = written(tmp_path, "hub:maker/voice@v1")
    told = explain(load_models((path,)))
    assert "               not here yet: the service downloads it when it starts" in told.lines
    assert told.faults == []
    monkeypatch.setenv("OMNISTAGE_OFFLINE", "true")
    assert "OMNISTAGE_OFFLINE is set" in explain(load_models((path,))).faults[0]
