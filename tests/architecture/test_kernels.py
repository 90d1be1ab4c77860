"""Every operation of the kernels has all its parts, and its README says what a caller must know."""

from __future__ import annotations

from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "kernels"
OPS = sorted(path.parent for path in (PACKAGE / "src" / "omnistage_kernels").glob("*/__init__.py"))
PARTS = ("__init__.py", "reference.py", "triton_impl.py", "README.md")


def missing_parts(op: Path, package: Path) -> list[str]:
    """What an operation lacks."""
    paths = [*(op / part for part in PARTS)]
    paths += [package / "tests" / f"test_{op.name}.py", package / "benchmarks" / f"bench_{op.name}.py"]
    return [path.relative_to(package).as_posix() for path in paths if not path.is_file()]


def test_there_are_operations() -> None:
    assert {op.name for op in OPS} >= {"rms_norm", "rotary", "paged_attention", "gated_mlp"}


@pytest.mark.parametrize("op", OPS, ids=lambda op: str(op.name))
def test_each_operation_is_whole(op: Path) -> None:
    assert missing_parts(op, PACKAGE) == []
    assert "TOLERANCE" in (op / "__init__.py").read_text()


@pytest.mark.parametrize("op", OPS, ids=lambda op: str(op.name))
def test_each_readme_says_maths_tolerance_and_invariance(op: Path) -> None:
    text = (op / "README.md").read_text().lower()
    absent = [word for word in ("float32", "tolerance", "depend") if word not in text]
    assert absent == []


def test_a_missing_part_is_found(tmp_path: Path) -> None:
    op = tmp_path / "src" / "omnistage_kernels" / "softmax"
    op.mkdir(parents=True)
    (op / "__init__.py").touch()
    assert len(missing_parts(op, tmp_path)) == len(PARTS) - 1 + 2
