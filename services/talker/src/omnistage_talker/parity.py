"""`python -m omnistage_talker parity FOLDER`: what the talker's families compute, beside what their references did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from omnistage.parity import Check, Comparison, run_checks


def _qwen3_tts(folder: Path) -> Iterator[Comparison]:
    from omnistage_talker.models.qwen3_tts.parity import check

    return check(folder)


def _qwen3_omni(folder: Path) -> Iterator[Comparison]:
    from omnistage_talker.models.qwen3_omni.parity import check

    return check(folder)


CHECKS: Mapping[str, Check] = {"qwen3_tts": _qwen3_tts, "qwen3_omni_moe": _qwen3_omni}
"""model_type of a checkpoint -> the check of its family."""


def main(arguments: Sequence[str]) -> int:
    """Run the checks; returns the exit code."""
    return run_checks("talker", CHECKS, arguments)
