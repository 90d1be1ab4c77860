"""The table of models: what each can do, how near it is to its reference, and the memory that it takes at real size.

    python tools/model_table.py                    print the table; `tools/render_docs.py` puts it into docs/models.md
    python tools/model_table.py --measure FOLDER   compare with the reference's recorded results in FOLDER, and keep the
                                                   numbers in benchmarks/results/parity.csv

Memory is computed: the networks of published sizes (tools/published) are built without any weights.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from omnistage.ar.qwen3.weights import Weights as TalkerWeights
from omnistage_codec.bootstrap import NetworkSettings
from omnistage_codec.models.qwen3.history import History
from omnistage_codec.models.qwen3.weights import Placement, Weights
from omnistage_codec.models.qwen3_tts.config import read_speaker_config, read_tokenizer_config
from omnistage_codec.models.qwen3_tts.decoder import Decoder
from omnistage_codec.models.qwen3_tts.encoder import Encoder
from omnistage_codec.models.qwen3_tts.speaker import SpeakerEncoder
from omnistage_talker.bootstrap import FrameEngineSettings
from omnistage_talker.models.qwen3_tts.config import read_config
from omnistage_talker.models.qwen3_tts.talker import Talker

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "tools" / "published" / "qwen3_tts"
MEASURED = ROOT / "benchmarks" / "results" / "parity.csv"
COLUMNS = ("stage", "part", "shape", "error", "allowed")
STAGES = ("talker", "codec")
BYTES = {"float32": 4, "bfloat16": 2}
TASKS = {"0.6b": "custom_voice, base", "1.7b": "custom_voice, voice_design, base"}
_FIXTURES = ("base.", "custom_voice.", "codec.")
_BLOCK = 16


@dataclass(frozen=True)
class Sizes:
    """Numbers that a checkpoint's configuration alone determines.

    Attributes:
        talker: parameters of the talker with its code predictor.
        talker_position: numbers that the key-value cache holds for a position; a frame is one.
        decoder: parameters of the codec's decoder.
        decoder_stream: numbers that the decoder keeps between the chunks of a stream.
        encoders: parameters of the encoders of recordings and of speakers together.
    """

    talker: int
    talker_position: int
    decoder: int
    decoder_stream: int
    encoders: int


class _Count:
    """Stands for a checkpoint's weights: of any name and shape, without their bytes."""

    def __init__(self) -> None:
        self.numbers = 0

    def take(self, _name: str, shape: tuple[int, ...]) -> Tensor:
        self.numbers += math.prod(shape)
        return torch.empty(shape, device="meta")


class _Shapes(Weights):
    """The same for the codec."""

    def below(self, part: str) -> _Shapes:
        return _Shapes(self.tensors, self.placement, f"{self.prefix}{part}.", self.taken)

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.tensors.setdefault(f"{self.prefix}{name}", torch.empty(shape, device="meta"))

    @property
    def numbers(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors.values())


def sizes(folder: Path) -> Sizes:
    """Build the networks of a checkpoint's configuration and count."""
    count = _Count()
    talker = Talker(read_config(folder), cast("TalkerWeights", count), length=_BLOCK)
    cache = talker.cache_shape(1, _BLOCK)
    tokenizer, speaker = read_tokenizer_config(folder), read_speaker_config(folder)
    assert speaker is not None
    decoding, encoding = _shapes(), _shapes()
    decoder = Decoder.take(decoding.below("decoder"), tokenizer.decoder_config)
    Encoder.take(encoding.below("encoder"), tokenizer)
    SpeakerEncoder.take(encoding.below("speaker_encoder"), speaker)
    return Sizes(
        talker=count.numbers,
        talker_position=2 * cache.num_layers * cache.num_kv_heads * cache.head_dim,
        decoder=decoding.numbers,
        decoder_stream=_remembered(decoder, tokenizer.decoder_config.num_quantizers),
        encoders=encoding.numbers,
    )


def _shapes() -> _Shapes:
    return _Shapes({}, Placement(device="meta"))


def _remembered(decoder: Decoder, groups: int) -> int:
    """Numbers that both parts of the decoder keep after a frame."""
    first, second = History([[]], [1]), History([[]], [1])
    codes = torch.zeros((1, 1, groups), dtype=torch.int64, device="meta")
    latents = decoder.latents(codes, torch.zeros(1, dtype=torch.int64, device="meta"), first)
    decoder.voice(latents, [0], second)
    return sum(tensor.numel() for history in (first, second) for tensor in history.after[0])


def table() -> str:
    """The whole table, as Markdown."""
    measured = {stage: _parity(stage) for stage in STAGES}
    lines = [
        "| family | tasks | stage | engine | parity | weights, float32 | bfloat16 | and for requests |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, tasks in TASKS.items():
        found = sizes(PUBLISHED / name)
        family = f"Qwen3-TTS 12 Hz, {name.upper()}"
        positions = cast("int", FrameEngineSettings.model_fields["kv_tokens"].default)
        recordings = cast("int", NetworkSettings.model_fields["reference_cache_mb"].default)
        rows = (
            ("talker", found.talker, f"{_size(found.talker_position, 'bfloat16')} a position in bfloat16: "
             f"{_size(found.talker_position * positions, 'bfloat16')} for `kv_tokens: {positions}`; twice in float32",
             measured["talker"]),
            ("codec: decoder", found.decoder, f"{_size(found.decoder_stream, 'float32')} a stream in float32",
             measured["codec"]),
            ("codec: encoders, base alone", found.encoders,
             f"at most {recordings} MiB of encoded recordings (`reference_cache_mb`)", "in the row above"),
        )  # fmt: skip
        for stage, numbers, beside, parity in rows:
            weights = " | ".join(_size(numbers, dtype) for dtype in BYTES)
            lines.append(f"| {family} | {tasks} | {stage} | `qwen3_tts` | {parity} | {weights} | {beside} |")
    return "\n".join(lines)


def _size(numbers: int, dtype: str) -> str:
    """Bytes for people; decimal units."""
    size = numbers * BYTES[dtype]
    for unit, scale in (("GB", 1e9), ("MB", 1e6)):
        if size >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size / 1e3:.0f} kB"


def _parity(stage: str) -> str:
    with MEASURED.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["stage"] == stage]
    errors = [(float(row["error"]), float(row["allowed"])) for row in rows]
    exact = [error for error, allowed in errors if allowed == 0]
    near = [(error / allowed, error, allowed) for error, allowed in errors if allowed]
    share, error, allowed = max(near)
    equal = f"{len(exact)} parts equal" if not any(exact) else f"{sum(map(bool, exact))} of {len(exact)} parts differ"
    return f"{equal}; of {len(near)} others the worst is off by {error:.1e} of {allowed:.0e} allowed ({share:.0%})"


def measure(folder: Path) -> None:
    """Run each service's comparison and keep its rows."""
    rows: list[dict[str, object]] = []
    for stage in STAGES:
        command = [sys.executable, "-m", f"omnistage_{stage}", "parity", str(folder), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        for row in map(json.loads, done.stdout.splitlines()):
            if row["part"].startswith(_FIXTURES):
                shape = "x".join(map(str, row["shape"]))
                rows.append({**row, "stage": stage, "shape": shape})
    with MEASURED.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main() -> None:
    """Print the table, after measuring where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", type=Path, metavar="FOLDER", help="fixtures in the layout of `omnistage parity`")
    folder = parser.parse_args().measure
    if folder is not None:
        measure(folder)
    print(table())


if __name__ == "__main__":
    main()
