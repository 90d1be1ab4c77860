"""The docs say what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from omnistage.config import load_models

PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "docs/architecture.md",
    "docs/operations.md",
    "docs/adding-a-model.md",
    "docs/models.md",
)


def test_generated_parts_are_fresh(root: Path) -> None:
    done = subprocess.run(
        [sys.executable, root / "tools" / "render_docs.py", "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_stale_part_is_noticed(root: Path, tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, runpy; sys.argv = ['render_docs.py', '--check'];"
        f"module = runpy.run_path({str(root / 'tools' / 'render_docs.py')!r});"
        "page = '<!-- generated: metrics -->\\nold\\n<!-- end -->\\n';"
        "assert module['rendered'](page) != page;"
        "assert module['rendered'](module['rendered'](page)) == module['rendered'](page)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(root: Path, page: str) -> None:
    text = (root / page).read_text(encoding="utf-8")
    targets = [target for target in re.findall(r"\]\(([^)#]+)", text) if "://" not in target]
    missing = [target for target in targets if not ((root / page).parent / target).exists()]
    assert missing == []


@pytest.mark.parametrize("page", ["README.md", "docs/adding-a-model.md"])
def test_models_files_that_the_docs_show_are_valid(root: Path, tmp_path: Path, page: str) -> None:
    text = (root / page).read_text(encoding="utf-8")
    examples = re.findall(r"```yaml\n((?:#.*\n)?version: 1\n.*?)```", text, re.DOTALL)
    assert examples
    for example in examples:
        overlay = tmp_path / "overlay.yaml"
        overlay.write_text(example, encoding="utf-8")
        load_models((root / "deploy" / "models.yaml", overlay))


def test_architecture_fits_on_two_pages(root: Path) -> None:
    text = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 1000


def test_decisions_have_the_same_shape(root: Path) -> None:
    records = sorted((root / "docs" / "adr").glob("*.md"))
    assert [int(record.name[:4]) for record in records] == list(range(1, len(records) + 1))
    for record in records:
        text = record.read_text(encoding="utf-8")
        assert re.match(rf"# {record.name[:4]}\. \S", text), record.name
        assert re.search(r"^\| status \| date \| tags \|$", text, re.MULTILINE), record.name
        assert re.search(r"^A change violates this when ", text, re.MULTILINE), record.name
        assert text.rstrip().endswith("."), record.name


def test_make_targets_that_the_docs_name_exist(root: Path) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"`make ([a-z0-9-]+)`", (root / page).read_text(encoding="utf-8")))
        assert named <= targets, page


def test_every_make_target_is_documented(root: Path) -> None:
    shown = re.findall(r"^([a-z0-9-]+):.*## ", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    text = (root / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [target for target in shown if f"`make {target}`" not in text and f"`{target}`" not in text] == []
