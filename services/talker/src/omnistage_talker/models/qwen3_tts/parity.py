"""Compares the talker with recorded numbers of the reference implementation, part by part."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from omnistage.parity import Comparison, Tolerance, compare
from omnistage_talker.models.qwen3.replay import PENALTIES, TRACED, Replay, check_numbers, greedy
from omnistage_talker.models.qwen3_tts.checkpoint import load_talker
from omnistage_talker.models.qwen3_tts.prompt import Manner, Prompt
from omnistage_talker.models.qwen3_tts.replay import Fixture, make_prompt, read_fixtures, run_frames
from omnistage_talker.models.qwen3_tts.talker import Talker
from omnistage_talker.models.qwen3_tts.tokenizer import TextTokenizer, load_tokenizer

_NUMBERS = ("talker_", "decode_input_embeds_", "code_predictor_logits_")


def check(folder: Path) -> Iterator[Comparison]:
    """Compare every recorded request of the checkpoints in a folder of the golden layout."""
    for meta in sorted((folder / "fixtures").glob("meta.*.json")):
        kind = meta.name.removeprefix("meta.").removesuffix(".json")
        if (folder / kind / "config.json").exists():
            talker = load_talker(folder / kind)
            tokenizer = load_tokenizer(folder / kind, talker.config.text)
            fixtures = {fixture.name: fixture for fixture in read_fixtures(folder / "fixtures", kind)}
            for fixture in fixtures.values():
                yield from check_fixture(talker, tokenizer, fixture, fixtures)
            yield from _end_to_end(talker, tokenizer, folder / "fixtures", kind)


def check_fixture(
    talker: Talker, tokenizer: TextTokenizer, fixture: Fixture, others: dict[str, Fixture]
) -> Iterator[Comparison]:
    """Compare one recording: text, prompt, logits and hidden states of the first steps, codes of all groups."""
    rows = [fixture]
    if "rows" in fixture.request:
        kind = fixture.name.split(".")[0]
        rows = [others[f"{kind}.{name}"] for name in fixture.request["rows"]]
    for row in rows:
        yield from _check_text(fixture.name, tokenizer, row)
    prompts = [make_prompt(talker, row.manner(), row.text_ids()) for row in rows]
    yield from _check_prompts(talker, fixture, prompts)
    for tag, penalty in PENALTIES.items():
        results = run_frames(talker, prompts, greedy(penalty), fixture.max_frames + 1)
        for index, result in enumerate(results):
            name = f"codes_{tag}" if f"codes_{tag}" in fixture.tensors else f"codes_{tag}.{index}"
            found = result.codes[:, : fixture.max_frames]
            yield compare(f"{fixture.name}: {name}", found.numpy(), fixture.tensors[name].numpy(), Tolerance.CODES)
            if tag == TRACED:
                yield from _check_numbers(fixture, index, result)


def _check_text(name: str, tokenizer: TextTokenizer, row: Fixture) -> Iterator[Comparison]:
    request, manner = row.request, row.manner()
    texts = {
        "input_ids": ([*tokenizer.role, *tokenizer.encode(request["text"])], [*manner.role_ids, *row.text_ids()]),
        "instruct_ids": (tokenizer.instruction(request.get("instruct") or ""), manner.instruct_ids),
        "ref_ids": (tokenizer.encode(request.get("ref_text") or ""), manner.ref_ids),
    }
    for part, (found, recorded) in texts.items():
        if part in row.tensors:
            yield compare(f"{name}: {part}", list(found), list(recorded), Tolerance.CODES)


def _check_prompts(talker: Talker, fixture: Fixture, prompts: list[Prompt]) -> Iterator[Comparison]:
    """Several rows were padded on the left (prompt) and with the padding row (later text)."""
    expected = fixture.tensors["prefill_embeds"].reshape(len(prompts), -1, talker.embeddings.width)
    later = fixture.tensors["trailing_text_hidden"].reshape(len(prompts), -1, talker.embeddings.width)
    for index, prompt in enumerate(prompts):
        suffix = f"[{index}]" if len(prompts) > 1 else ""
        found = prompt.prefill
        assert found is not None
        recorded = expected[index][fixture.tensors["attention_mask"].reshape(len(prompts), -1)[index] == 1]
        yield _embeds(fixture, f"prefill_embeds{suffix}", found, recorded)
        count = max(later.shape[1], len(prompt.later))
        rows = torch.stack([prompt.later.row(position) for position in range(count)])
        yield _embeds(fixture, f"trailing_text_hidden{suffix}", rows, later[index])
    yield _embeds(fixture, "tts_pad_embed", talker.embeddings.tts_pad, fixture.tensors["tts_pad_embed"])


def _embeds(fixture: Fixture, part: str, found: Tensor, recorded: Tensor) -> Comparison:
    return compare(f"{fixture.name}: {part}", found.numpy(), recorded.numpy(), Tolerance.EMBEDDINGS)


def _check_numbers(fixture: Fixture, index: int, result: Replay) -> Iterator[Comparison]:
    recorded = fixture.tensors
    suffix = f"[{index}]" if recorded["talker_logits_first3"].shape[0] > 1 else ""
    mine = {name: tensor[index] for name, tensor in recorded.items() if name.startswith(_NUMBERS)}
    for row in check_numbers(mine, result):
        yield replace(row, part=f"{fixture.name}: {row.part}{suffix}")


def _end_to_end(talker: Talker, tokenizer: TextTokenizer, folder: Path, kind: str) -> Iterator[Comparison]:
    """From the text itself. The cloned speaker's embedding is recorded with the clip."""
    meta = json.loads((folder / f"meta.{kind}.json").read_text(encoding="utf-8"))
    for name, about in meta.items():
        if ".end_to_end" not in name or not (folder / name).exists():
            continue
        tensors, request = load_file(folder / name), about["request"]
        codes = tensors.get("ref_codes")
        embedding = None
        if codes is not None:
            clips = load_file(folder / f"{kind}.encoder.safetensors")
            embedding = clips["speaker_embedding_b"]
        manner = Manner(
            role_ids=tokenizer.role,
            language=request["language"],
            speaker=request.get("speaker"),
            embedding=embedding,
            ref_ids=tuple(tokenizer.encode(request["ref_text"])) if codes is not None else (),
            ref_codes=codes.T.long() if codes is not None else None,
            non_streaming=request["non_streaming_mode"],
        )
        prompt = make_prompt(talker, manner, tokenizer.encode(request["text"]))
        frames = tensors["codes"].shape[1]
        (result,) = run_frames(talker, [prompt], greedy(PENALTIES[TRACED]), frames)
        part = f"{name.removesuffix('.safetensors')}: codes"
        yield compare(part, result.codes.numpy(), tensors["codes"].numpy(), Tolerance.CODES)
