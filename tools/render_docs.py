"""Write the generated parts of the docs: diagrams from the pipelines, tables from the registry and the settings.

    python tools/render_docs.py           rewrite what is out of date
    python tools/render_docs.py --check   only say what is; exit code 1 if anything is

A generated part stands between `<!-- generated: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from omnistage.config import EngineSpec, ModelSpec, ServiceSettings
from omnistage.config.settings import PREFIX
from omnistage.observability import names
from omnistage.pipelines import CATALOGUE, GATEWAY, Pipeline

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/architecture.md", "docs/operations.md", "docs/adding-a-model.md", "docs/models.md")
_PART = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_ATTRIBUTE = re.compile(r"^ {4,8}(?P<names>[a-z_]+(?:, [a-z_]+)*): (?P<text>.+)$")


def pipeline_diagram(pipeline: Pipeline) -> str:
    """One pipeline as a Mermaid flow chart; dotted arrows also start the stage that they lead to."""
    lines = ["```mermaid", "flowchart LR", "  client([client])"]
    for node in pipeline.stages():
        lines.append(f"  {node.name}[{node.name}]")
    for edge in pipeline.edges:
        source = "client" if edge.source == GATEWAY else edge.source
        destination = "client" if edge.destination == GATEWAY else edge.destination
        if edge.source == GATEWAY:
            work = pipeline.node(edge.destination).work
            label = work.__name__ if work is not None else ""
        else:
            label = ", ".join(kind.__name__ for kind in edge.carries)
        lines.append(f"  {source} {'==>' if edge.starts else '-->'}|{label}| {destination}")
    return "\n".join([*lines, "```"])


def pipelines() -> str:
    """Every pipeline: what it is for, and its diagram."""
    parts = [
        f"**{pipeline.name}**: {pipeline.about}.\n\n{pipeline_diagram(pipeline)}" for pipeline in CATALOGUE.values()
    ]
    return "\n\n".join(parts)


def omni() -> str:
    """The diagram of the longest pipeline."""
    return pipeline_diagram(CATALOGUE["omni"])


def metrics() -> str:
    """Every metric of the registry."""
    lines = ["| metric | kind | unit | labels | exported by | meaning |", "| --- | --- | --- | --- | --- | --- |"]
    who = {"every": "every service", "stage": "stages", "gateway": "the gateway"}
    for metric in names.METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        lines.append(
            f"| `{metric.exposed}` | {metric.kind} | {metric.unit} | {labels} | {who[metric.owner]} | {metric.help} |"
        )
    return "\n".join(lines)


def settings() -> str:
    """Every variable that a service reads: first those of all services, then each service's own."""
    parts = ["All services:", "", _table(ServiceSettings, "variable", prefix=PREFIX)]
    for service in _services():
        kind = _settings_class(service)
        own = set(kind.model_fields) - set(ServiceSettings.model_fields)
        if own:
            parts += ["", f"The {service}:", "", _table(kind, "variable", set(ServiceSettings.model_fields), PREFIX)]
    return "\n".join(parts)


def models_file() -> str:
    """The keys of the models file, and the `settings` of each stage's engines."""
    parts = ["Of an engine:", "", _table(EngineSpec, "key"), "", "Of a model:", "", _table(ModelSpec, "key")]
    for service in _services():
        bootstrap = importlib.import_module(f"omnistage_{service}.bootstrap")
        kind = getattr(bootstrap, "EngineSettings", None)
        if kind is None:
            continue
        parts += ["", f"`settings` of the {service}'s engines:", "", _table(kind, "key")]
        for further in _further_settings(bootstrap, kind):
            about = (inspect.getdoc(further) or "").partition("\n")[0].removesuffix(".")
            known = set(kind.model_fields) if issubclass(further, kind) else set()
            parts += ["", f"{about}{', beside these' if known else ''}:", "", _table(further, "key", known)]
    return "\n".join(parts)


def _further_settings(bootstrap: ModuleType, kind: type[BaseModel]) -> list[type[BaseModel]]:
    """What further kinds of a service's engines take."""
    classes = [value for value in vars(bootstrap).values() if isinstance(value, type) and issubclass(value, BaseModel)]
    return [value for value in classes if value.__module__ == bootstrap.__name__ and value is not kind]


def models() -> str:
    """The table of models; in a process of its own, since it needs the model libraries."""
    command = [sys.executable, str(ROOT / "tools" / "model_table.py")]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip()


def services() -> str:
    """The table of services."""
    lines = ["| service | package | what it does | version |", "| --- | --- | --- | --- |"]
    for service in _services():
        with (ROOT / "services" / service / "pyproject.toml").open("rb") as file:
            project = tomllib.load(file)["project"]
        about = project["description"].removeprefix("Omnistage's ")
        lines.append(f"| {service} | [`{project['name']}`](services/{service}) | {about} | {project['version']} |")
    return "\n".join(lines)


PARTS: dict[str, Callable[[], str]] = {
    "metrics": metrics,
    "models": models,
    "models-file": models_file,
    "omni": omni,
    "pipelines": pipelines,
    "services": services,
    "settings": settings,
}


def _services() -> list[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        packages = tomllib.load(file)["tool"]["omnistage"]["packages"]
    return [package.removeprefix("services/") for package in packages if package.startswith("services/")]


def _settings_class(service: str) -> type[ServiceSettings]:
    module = importlib.import_module(f"omnistage_{service}.settings")
    return next(
        kind
        for _, kind in inspect.getmembers(module, inspect.isclass)
        if issubclass(kind, ServiceSettings) and kind.__module__ == module.__name__
    )


def _described(kind: type[BaseModel]) -> dict[str, str]:
    """Attribute -> description, from the class's docstring; continuation lines are indented further."""
    found: dict[str, str] = {}
    current: list[str] = []
    for line in (inspect.getdoc(kind) or "").splitlines():
        match = _ATTRIBUTE.match(line)
        if match:
            current = match["names"].split(", ")
            found |= dict.fromkeys(current, match["text"])
        elif line.startswith("        ") and current:
            found |= {name: f"{found[name]} {line.strip()}" for name in current}
        elif not line.strip():
            current = []
    return found


def _table(kind: type[BaseModel], title: str, known: set[str] | None = None, prefix: str = "") -> str:
    described = _described(kind)
    lines = [f"| {title} | default | meaning |", "| --- | --- | --- |"]
    for name, field in kind.model_fields.items():
        if known and name in known:
            continue
        if name not in described:
            raise SystemExit(f"{kind.__module__}.{kind.__name__}: the docstring does not describe {name!r}")
        default = field.get_default(call_default_factory=True)
        shown = "required" if default is PydanticUndefined else _show(default)
        lines.append(f"| `{prefix + name.upper() if prefix else name}` | {shown} | {described[name]} |")
    return "\n".join(lines)


def _show(value: object) -> str:
    if value is None or value in ("", (), {}):
        return "none"
    if isinstance(value, tuple | list):
        value = ",".join(str(part) for part in value)
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def rendered(text: str) -> str:
    """A page with its generated parts made anew."""
    return _PART.sub(lambda match: f"{match[1]}{PARTS[match['name']]()}\n{match[3]}", text)


def main() -> int:
    """Render the pages; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing; exit with 1 if a page is out of date")
    check = parser.parse_args().check
    stale = []
    for name in PAGES:
        page = ROOT / name
        before = page.read_text(encoding="utf-8")
        after = rendered(before)
        if after != before:
            stale.append(name)
            if not check:
                page.write_text(after, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'out of date; run `make docs`' if check else 'rendered'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
