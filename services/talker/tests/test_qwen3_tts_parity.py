"""The family computes what the reference implementation recorded, and a wrong computation would be seen."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from omnistage.parity import Tolerance
from omnistage_talker.models.qwen3.replay import greedy
from omnistage_talker.models.qwen3_tts.parity import check
from omnistage_talker.models.qwen3_tts.prompt import Manner
from omnistage_talker.models.qwen3_tts.replay import Fixture, make_prompt, read_fixtures, run_frames
from omnistage_talker.models.qwen3_tts.talker import Talker

CLEARLY = 100.0
"""A wrong computation is off by this many tolerances."""

_OTHERS = re.compile(r"(ref_codes|speaker_embedding|attention_mask|waveform|frame0_topid)$")
"""Inputs, and what the codec is compared with."""


def test_every_recorded_result_is_met(golden: Path) -> None:
    rows = list(check(golden))
    assert [row for row in rows if not row.passed] == []
    compared = {row.part.partition("[")[0] for row in rows}
    files = [*golden.glob("fixtures/custom_voice.*.safetensors"), *golden.glob("fixtures/base.*.safetensors")]
    assert len(files) >= 3
    for path in files:
        for name in load_file(path) if ".encoder" not in path.stem else ():
            assert _OTHERS.search(name) or f"{path.stem}: {name}" in compared, f"{path.name}: {name}"


@dataclass(frozen=True)
class Numbers:
    """All that is compared of one run."""

    prefill_embeds: Tensor
    logits: Tensor
    hidden: Tensor
    fed: Tensor
    residual: Tensor
    codes: Tensor


def _numbers(
    talker: Talker, manner: Manner, text: list[int], *, penalty: float = 1.05, position_offset: int = 0
) -> Numbers:
    prompt = make_prompt(talker, manner, text)
    assert prompt.prefill is not None
    (result,) = run_frames(talker, [prompt], greedy(penalty), 8, position_offset=position_offset)
    first = result.numbers[:3]
    return Numbers(
        prompt.prefill,
        torch.stack([step.logits for step in first]),
        torch.stack([step.hidden for step in first]),
        torch.stack([step.embeds for step in result.numbers[1:4]]),
        result.numbers[0].residual,
        result.codes,
    )


def _fixture(golden: Path, name: str) -> Fixture:
    kind = name.split(".")[0]
    return next(item for item in read_fixtures(golden / "fixtures", kind) if item.name == name)


def _moved(a: Tensor, b: Tensor) -> float:
    count = min(len(a), len(b))
    return float((a[-count:] - b[-count:]).abs().max())


def _other_language(manner: Manner) -> Manner:
    return replace(manner, language="german")


def _no_language(manner: Manner) -> Manner:
    return replace(manner, language="auto")


def _other_voice(manner: Manner) -> Manner:
    if manner.embedding is not None:
        return replace(manner, embedding=-manner.embedding)
    return replace(manner, speaker="sohee")


def _other_order_of_text(manner: Manner) -> Manner:
    return replace(manner, non_streaming=not manner.non_streaming)


CONTROLS: dict[str, Callable[[Manner], Manner]] = {
    "another language": _other_language,
    "no language": _no_language,
    "another voice": _other_voice,
    "text at other places": _other_order_of_text,
}


@pytest.mark.parametrize("control", CONTROLS)
@pytest.mark.parametrize("name", ["base.xvector", "base.icl_text_longer", "base.icl_text_shorter"])
def test_another_manner_is_seen_in_every_part(
    golden: Path, talkers: dict[str, Talker], name: str, control: str
) -> None:
    fixture = _fixture(golden, name)
    talker = talkers["base"]
    right = _numbers(talker, fixture.manner(), fixture.text_ids())
    wrong = _numbers(talker, CONTROLS[control](fixture.manner()), fixture.text_ids())
    _check_all_moved(right, wrong)


def _check_all_moved(right: Numbers, wrong: Numbers) -> None:
    """Every part of the comparison is far from what it was; what is fed, where the codes are others."""
    if len(right.prefill_embeds) == len(wrong.prefill_embeds):
        assert _moved(right.prefill_embeds, wrong.prefill_embeds) > CLEARLY * Tolerance.EMBEDDINGS
    assert _moved(right.logits, wrong.logits) > CLEARLY * Tolerance.LOGITS
    assert _moved(right.hidden, wrong.hidden) > CLEARLY * Tolerance.HIDDEN_STATES
    assert _moved(right.residual, wrong.residual) > CLEARLY * Tolerance.LOGITS
    if not torch.equal(right.codes[:, :3], wrong.codes[:, :3]):
        assert _moved(right.fed, wrong.fed) > CLEARLY * Tolerance.EMBEDDINGS
    assert right.codes.shape != wrong.codes.shape or not torch.equal(right.codes, wrong.codes)


def _other_speaker(manner: Manner) -> Manner:
    return replace(manner, speaker="serena")


def _no_speaker(manner: Manner) -> Manner:
    return replace(manner, speaker=None)


def _language_without_dialect(manner: Manner) -> Manner:
    return replace(manner, language="english")


def _other_dialect(manner: Manner) -> Manner:
    return replace(manner, language="sichuan_dialect")


def _no_instruction(manner: Manner) -> Manner:
    return replace(manner, instruct_ids=())


def _other_instruction(manner: Manner) -> Manner:
    """One of its words is another one."""
    ids = list(manner.instruct_ids)
    ids[len(ids) // 2] += 1
    return replace(manner, instruct_ids=tuple(ids))


VOICE_CONTROLS: dict[str, tuple[str, Callable[[Manner], Manner]]] = {
    "another speaker": ("streaming", _other_speaker),
    "no speaker": ("streaming", _no_speaker),
    "another language": ("streaming", _other_language),
    "text at other places": ("streaming", _other_order_of_text),
    "a language in place of the speaker's dialect": ("dialect_auto", _language_without_dialect),
    "another dialect": ("dialect_auto", _other_dialect),
    "another speaker than the one with the dialect": ("dialect_auto", _other_speaker),
    "a language in place of none": ("auto_no_dialect", _language_without_dialect),
    "no instruction": ("instruct", _no_instruction),
    "another instruction": ("instruct", _other_instruction),
    "a speaker beside a described voice": ("no_speaker_instruct", _other_speaker),
    "another description": ("no_speaker_instruct", _other_instruction),
}


@pytest.mark.parametrize("control", VOICE_CONTROLS)
def test_another_voice_or_manner_of_a_named_voice_is_seen_in_every_part(
    golden: Path, talkers: dict[str, Talker], control: str
) -> None:
    name, changed = VOICE_CONTROLS[control]
    fixture = _fixture(golden, f"custom_voice.{name}")
    talker = talkers["custom_voice"]
    right = _numbers(talker, fixture.manner(), fixture.text_ids())
    wrong = _numbers(talker, changed(fixture.manner()), fixture.text_ids())
    _check_all_moved(right, wrong)


@pytest.mark.parametrize("group", [0, 1, 8, 15])
def test_another_code_of_any_group_is_seen_in_what_the_talker_is_fed(
    golden: Path, talkers: dict[str, Talker], group: int
) -> None:
    """The recording says what the second step is fed: the first frame's codes and the next piece of text."""
    fixture = _fixture(golden, "custom_voice.streaming")
    talker = talkers["custom_voice"]
    expected = fixture.tensors["decode_input_embeds_first3"][0, :1]
    text = make_prompt(talker, fixture.manner(), fixture.text_ids()).later.row(0)
    codes = fixture.tensors["codes_rp105"][:, :1].T.long()
    assert _moved(talker.embeddings.frames(codes) + text, expected) <= Tolerance.EMBEDDINGS
    wrong = codes.clone()
    wrong[0, group] = (wrong[0, group] + 1) % 2048
    assert _moved(talker.embeddings.frames(wrong) + text, expected) > CLEARLY * Tolerance.EMBEDDINGS


def test_another_position_is_seen(golden: Path, talkers: dict[str, Talker]) -> None:
    fixture = _fixture(golden, "base.xvector")
    right = _numbers(talkers["base"], fixture.manner(), fixture.text_ids())
    wrong = _numbers(talkers["base"], fixture.manner(), fixture.text_ids(), position_offset=1)
    assert _moved(right.logits, wrong.logits) > CLEARLY * Tolerance.LOGITS
    assert _moved(right.hidden, wrong.hidden) > CLEARLY * Tolerance.HIDDEN_STATES


def test_other_reference_frames_and_words_are_seen(golden: Path, talkers: dict[str, Talker]) -> None:
    fixture = _fixture(golden, "base.icl_text_longer")
    manner = fixture.manner()
    codes = manner.ref_codes
    assert codes is not None
    right = _numbers(talkers["base"], manner, fixture.text_ids())
    one_code = codes.clone()
    one_code[3, 15] = codes[4, 15]
    for wrong_manner in (
        replace(manner, ref_codes=codes[:, torch.randperm(16, generator=torch.Generator().manual_seed(0))]),
        replace(manner, ref_codes=one_code),
        replace(manner, ref_ids=manner.ref_ids[1:]),
    ):
        wrong = _numbers(talkers["base"], wrong_manner, fixture.text_ids())
        assert _moved(right.prefill_embeds, wrong.prefill_embeds) > CLEARLY * Tolerance.EMBEDDINGS
        assert _moved(right.logits, wrong.logits) > CLEARLY * Tolerance.LOGITS


def test_another_later_text_is_seen_from_its_frame_on(golden: Path, talkers: dict[str, Talker]) -> None:
    fixture = _fixture(golden, "base.xvector")
    ids = fixture.text_ids()
    other = [*ids[:2], ids[2] + 1, *ids[3:]]
    right = _numbers(talkers["base"], fixture.manner(), ids)
    wrong = _numbers(talkers["base"], fixture.manner(), other)
    assert _moved(right.prefill_embeds, wrong.prefill_embeds) == 0
    assert _moved(right.fed[:1], wrong.fed[:1]) == 0
    assert _moved(right.fed[1:2], wrong.fed[1:2]) > CLEARLY * Tolerance.EMBEDDINGS
    assert _moved(right.logits[2:], wrong.logits[2:]) > CLEARLY * Tolerance.LOGITS


def _tampered(golden: Path, folder: Path, name: str, change: Callable[[Tensor], Tensor]) -> Path:
    """A golden folder with one recording, in which one tensor is changed."""
    for part in ("base", "fixtures"):
        (folder / "qwen3_tts" / part).mkdir(parents=True)
    for path in (golden / "base").iterdir():
        if path.is_file():
            shutil.copy(path, folder / "qwen3_tts" / "base")
    meta = json.loads((golden / "fixtures" / "meta.base.json").read_text())
    file = "base.icl_text_shorter.safetensors"
    (folder / "qwen3_tts" / "fixtures" / "meta.base.json").write_text(json.dumps({file: meta[file]}))
    tensors = load_file(golden / "fixtures" / file)
    tensors[name] = change(tensors[name])
    save_file(tensors, folder / "qwen3_tts" / "fixtures" / file)
    return folder


def _next_code(codes: Tensor) -> Tensor:
    codes = codes.clone()
    codes[15, 0] += 1
    return codes


def _run(folder: Path) -> Iterator[str]:
    done = subprocess.run(
        [sys.executable, "-m", "omnistage_talker", "parity", str(folder)], capture_output=True, text=True, check=False
    )
    yield str(done.returncode)
    yield done.stdout + done.stderr


@pytest.mark.parametrize("name", ["codes_rp100", "prefill_embeds", "talker_logits_first3"])
def test_the_command_says_what_is_missed(golden: Path, tmp_path: Path, name: str) -> None:
    change = _next_code if name.startswith("codes") else lambda tensor: tensor + 3e-4
    code, text = _run(_tampered(golden, tmp_path, name, change))
    assert code == "1"
    missed = [line for line in text.splitlines() if "MISSED" in line]
    assert len(missed) == 1
    assert missed[0].startswith(f"base.icl_text_shorter: {name}")


def test_the_command_ends_well_where_all_is_met(golden: Path, tmp_path: Path) -> None:
    code, text = _run(_tampered(golden, tmp_path, "codes_rp100", lambda tensor: tensor))
    assert code == "0", text
    assert text.rstrip().endswith("0 missed")


def test_the_command_refuses_a_folder_without_fixtures(tmp_path: Path) -> None:
    code, text = _run(tmp_path)
    assert code == "1"
    assert "no fixtures" in text
