"""Rules about single files, each a function that names the offending lines, and each shown to find what it bans."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.architecture.conftest import Source

Rule = Callable[[ast.AST], bool]

# Where tasks are made: the runtime's bag, the one pump of the transport (a layer below the bag), and the conformance
# suites, which cancel what they start.
_TASK_MODULES = (
    "shared/src/omnistage/runtime/tasks.py",
    "shared/src/omnistage/transport/pump.py",
    "shared/src/omnistage/testing/",
)
_SUBJECTS_MODULE = "shared/src/omnistage/subjects.py"
_PRINTING = ("shared/src/omnistage/launcher/", "tools/", "benchmarks/")
_SUBJECT = re.compile(r"(^|[\s\"'{}])[a-z0-9_{}-]+\.v1\.(work|feed|out|ctl|dead)\b|\.v1\.(work|feed|out|ctl|dead)\.")
_MARKS = re.compile(r"#.*\b(TODO|FIXME|XXX|HACK)\b")  # the words themselves are what is banned
_WORKPLACE = re.compile(r"/work/|\bthis session\b|\bissue #?\d+\b|\bM[1-9]\b(?! ?[A-Z])", re.IGNORECASE)


def _dotted(node: ast.AST) -> str:
    """`a.b.c` of a name or attribute, else ""."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value)
        return f"{head}.{node.attr}" if head else f"?.{node.attr}"
    return ""


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)


def loose_task(node: ast.AST) -> bool:
    """A task that no TaskGroup or bag holds: asyncio.create_task, ensure_future, loop.create_task."""
    if not isinstance(node, ast.Call):
        return False
    name = _dotted(node.func)
    if name.endswith("ensure_future"):
        return True
    if not name.endswith("create_task"):
        return False
    return not re.fullmatch(r"(\w+\.)*_?(group|tasks|requests|tg)\.create_task", name)


def environment(node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute | ast.Name) and _dotted(node) in ("os.environ", "os.getenv", "os.putenv"):
        return True
    return any(name in ("os.environ", "os.getenv") for name in _imports(node))


def printing(node: ast.AST) -> bool:
    """print, but for a word on standard error before logging is set up."""
    if not isinstance(node, ast.Call) or _dotted(node.func) != "print":
        return False
    return not any(keyword.arg == "file" and _dotted(keyword.value) == "sys.stderr" for keyword in node.keywords)


def pickling(node: ast.AST) -> bool:
    """Code that runs what it reads: pickle and its kin, torch.load unless weights_only=True."""
    banned = ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")
    if any(name.partition(".")[0] in banned for name in _imports(node)):
        return True
    if not isinstance(node, ast.Call) or _dotted(node.func) != "torch.load":
        return False
    safe = [keyword.value for keyword in node.keywords if keyword.arg == "weights_only"]
    return not (safe and isinstance(safe[0], ast.Constant) and safe[0].value is True)


def unsafe_loading(node: ast.AST) -> bool:
    """eval, exec, yaml.load, shell=True."""
    if not isinstance(node, ast.Call):
        return False
    shell = any(
        keyword.arg == "shell" and isinstance(keyword.value, ast.Constant) and keyword.value.value is True
        for keyword in node.keywords
    )
    return shell or _dotted(node.func) in ("eval", "exec", "yaml.load", "os.system")


def library_shared_memory(node: ast.AST) -> bool:
    """multiprocessing.shared_memory: its readers destroy segments on Python 3.11."""
    return any(name.startswith("multiprocessing.shared_memory") for name in _imports(node))


def subject_literal(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and bool(_SUBJECT.search(node.value))


def swallowed(node: ast.AST) -> bool:
    """A handler that catches everything, or cancellation, and does nothing."""
    if not isinstance(node, ast.ExceptHandler):
        return False
    caught = {""} if node.type is None else {_dotted(part) for part in ast.walk(node.type)} - {""}
    broad = node.type is None or caught & {"Exception", "BaseException", "asyncio.CancelledError", "CancelledError"}
    idle = all(isinstance(line, ast.Pass | ast.Continue) for line in node.body)
    return bool(broad) and idle


def metric_literal(node: ast.AST) -> bool:
    """A metric named by a string instead of the registry's constant."""
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and bool(re.fullmatch(r"omnistage_[a-z]+(_[a-z]+)*_(total|seconds|bytes|count)", node.value))
    )


def _violations(source: Source, rule: Rule) -> list[str]:
    return [f"{source.where}:{getattr(node, 'lineno', 0)}" for node in ast.walk(source.tree) if rule(node)]


def _is_settings(where: str) -> bool:
    return where.endswith("/settings.py") or where.startswith("shared/src/omnistage/config/")


@pytest.mark.parametrize(
    ("rule", "exempt"),
    [
        (loose_task, lambda where: where.startswith(_TASK_MODULES)),
        (environment, _is_settings),
        (printing, lambda where: where.startswith(_PRINTING)),
        (pickling, lambda where: False),
        (unsafe_loading, lambda where: False),
        (library_shared_memory, lambda where: False),
        (subject_literal, lambda where: where == _SUBJECTS_MODULE),
        (swallowed, lambda where: False),
        (metric_literal, lambda where: where.startswith("shared/src/omnistage/observability/")),
    ],
    ids=lambda value: getattr(value, "__name__", "") if callable(value) else str(value),
)
def test_product_code_keeps_the_rule(product: list[Source], rule: Rule, exempt: Callable[[str], bool]) -> None:
    found = [line for source in product if not exempt(source.where) for line in _violations(source, rule)]
    assert found == []


@pytest.mark.parametrize(
    ("rule", "bad", "good"),
    [
        (loose_task, "asyncio.create_task(f())", "group.create_task(f())"),
        (loose_task, "asyncio.get_running_loop().create_task(f())", "self._group.create_task(f())"),
        (loose_task, "asyncio.ensure_future(f())", "bag.spawn(f())"),
        (environment, "x = os.environ['A']", "x = os.path"),
        (environment, "x = os.getenv('A')", "x = settings.a"),
        (environment, "from os import environ", "from os import path"),
        (printing, "print(1)", "log.info('printed')"),
        (printing, "print(1, file=sys.stdout)", "print(1, file=sys.stderr)"),
        (pickling, "import pickle", "import json"),
        (pickling, "from joblib import load", "from json import load"),
        (pickling, "torch.load(p)", "torch.load(p, weights_only=True)"),
        (pickling, "torch.load(p, weights_only=False)", "safetensors.load(p)"),
        (unsafe_loading, "yaml.load(x)", "yaml.safe_load(x)"),
        (unsafe_loading, "run(x, shell=True)", "run(x, shell=False)"),
        (library_shared_memory, "from multiprocessing import shared_memory", "import mmap"),
        (library_shared_memory, "import multiprocessing.shared_memory", "import multiprocessing"),
        (subject_literal, "x = 'omni.v1.work.codec'", "x = subjects.work(a, b, c)"),
        (subject_literal, "x = f'{ns}.v1.feed.{stage}'", "x = 'api.v1.feedback'"),
        (swallowed, "try: f()\nexcept Exception: pass", "try: f()\nexcept OSError: pass"),
        (swallowed, "try: f()\nexcept (OSError, asyncio.CancelledError): pass", "try: f()\nexcept ValueError: g()"),
        (metric_literal, "x = 'omnistage_frames_total'", "x = names.FRAMES"),
    ],
)
def test_each_rule_finds_what_it_bans(rule: Rule, bad: str, good: str) -> None:
    assert any(rule(node) for node in ast.walk(ast.parse(bad)))
    assert not any(rule(node) for node in ast.walk(ast.parse(good)))


def test_no_unfinished_work_is_marked(sources: list[Source]) -> None:
    found = [
        f"{source.where}:{number}"
        for source in sources
        for number, line in enumerate(source.text.splitlines(), 1)
        if _MARKS.search(line) and source.where != "tests/architecture/test_code_rules.py"
    ]
    assert found == []
    assert _MARKS.search("x = 1  # TODO: later")


def test_files_speak_of_the_project_alone(root: Path, sources: list[Source]) -> None:
    pages = [
        (page.relative_to(root).as_posix(), page.read_text(encoding="utf-8")) for page in root.glob("docs/**/*.md")
    ]
    pages += [
        (source.where, source.text) for source in sources if source.where != "tests/architecture/test_code_rules.py"
    ]
    found = [
        f"{where}:{number}: {line.strip()}"
        for where, text in pages
        for number, line in enumerate(text.splitlines(), 1)
        if _WORKPLACE.search(line)
    ]
    assert found == []
    assert _WORKPLACE.search("see /work/shared")


def test_every_module_says_what_it_is_for(product: list[Source]) -> None:
    silent = [source.where for source in product if source.text.strip() and not ast.get_docstring(source.tree)]
    assert silent == []


def test_product_code_postpones_annotations(product: list[Source]) -> None:
    found = [
        source.where
        for source in product
        if any(isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) for node in source.tree.body)
        and "from __future__ import annotations" not in source.text
        and not source.where.endswith("/__init__.py")
    ]
    assert found == []
