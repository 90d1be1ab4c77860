"""`omnistage models check`: what a models file means on this machine, and what is wrong with it."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, field

from omnistage.config import EngineSpec, ModelsFile, ModelSpec, locate_checkpoint
from omnistage.errors import ConfigError
from omnistage.pipelines import Pipeline


@dataclass
class Explanation:
    """Lines for people, and the faults among them."""

    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


def explain(models: ModelsFile) -> Explanation:
    """Explain each served model and each engine."""
    result = Explanation()
    for key, model in models.models.items():
        _explain_model(result, key, model)
    used = {engine for model in models.models.values() for engine in model.nodes.values()}
    for key, engine in models.engines.items():
        _explain_engine(result, key, engine, used=key in used)
    services = {models.engines[key].service for key in used}
    for service in sorted(services):
        if importlib.util.find_spec(f"omnistage_{service}") is None:
            result.faults.append(f"the service {service!r} is not installed")
    return result


def _explain_model(result: Explanation, key: str, model: ModelSpec) -> None:
    graph = model.graph
    result.lines.append(f"model {key}" + (f": {model.description}" if model.description else ""))
    if model.aliases:
        result.lines.append(f"  also called  {', '.join(model.aliases)}")
    result.lines.append(f"  pipeline     {graph.name} ({graph.about})")
    result.lines.extend(f"               {way}" for way in _ways(graph))
    for node, engine in model.nodes.items():
        result.lines.append(f"  node         {node}: engine {engine}")
    if model.voices:
        names = ", ".join(f"{name}*" if name == model.default_voice else name for name in model.voices)
        result.lines.append(f"  voices       {names}")
    result.lines.append(
        f"  limits       {model.max_input_chars} characters of input, {model.max_output_tokens} tokens of output, "
        f"{model.deadline_s:g} s"
    )
    result.lines.append("")


def _ways(graph: Pipeline) -> list[str]:
    return [
        f"{edge.source} -> {edge.destination}"
        + (f": {', '.join(kind.__name__ for kind in edge.carries)}" if edge.carries else "")
        for edge in graph.edges
    ]


def _explain_engine(result: Explanation, key: str, engine: EngineSpec, *, used: bool) -> None:
    unused = "" if used else "  (no model uses it)"
    result.lines.append(f"engine {key}: {engine.engine} on {engine.service}{unused}")
    result.lines.append(f"  devices      {', '.join(engine.devices)}; {engine.slots} requests at once")
    if engine.checkpoint is None:
        result.lines.append("  checkpoint   none needed")
        return
    result.lines.append(f"  checkpoint   {engine.checkpoint}")
    try:
        result.lines.append(f"               found: {locate_checkpoint(engine.checkpoint)}")
    except ConfigError as error:
        result.lines.append(f"               MISSING: {error.message}")
        result.faults.append(f"engines.{key}.checkpoint: {error.message}")
