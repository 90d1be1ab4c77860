"""`omnistage models check`: what a models file means on this machine, and what is wrong with it."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from omnistage.config import EngineSpec, ModelsFile, ModelSpec, NotDownloaded, locate_checkpoint
from omnistage.errors import ConfigError
from omnistage.pipelines import Pipeline


@dataclass
class Explanation:
    """Lines for people, and the faults among them; a system with warnings starts, one with faults does not."""

    lines: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Told:
    """What a service's module `engines` tells without loading a model library.

    Attributes:
        names: engines that the service knows; None where it does not tell.
        checkpoint_fault: (engine, checkpoint) -> why it cannot be loaded, or None.
        voices: engine -> its voices, where they do not depend on the checkpoint.
    """

    names: tuple[str, ...] | None = None
    checkpoint_fault: Callable[[str, Path | None], str | None] = lambda _engine, _checkpoint: None
    voices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def explain(models: ModelsFile) -> Explanation:
    """Explain each served model and each engine."""
    result = Explanation()
    told: dict[str, _Told] = {engine.service: _told(engine.service) for engine in models.engines.values()}
    for key, model in models.models.items():
        _explain_model(result, key, model)
        _check_voices(result, key, model, models, told)
    used = {engine for model in models.models.values() for engine in model.nodes.values()}
    for key, engine in models.engines.items():
        _explain_engine(result, key, engine, told[engine.service], used=key in used)
    services = {models.engines[key].service for key in used}
    for service in sorted(services):
        if not _installed(service):
            result.faults.append(f"the service {service!r} is not installed")
    return result


def _installed(service: str) -> bool:
    return importlib.util.find_spec(f"omnistage_{service}") is not None


def _told(service: str) -> _Told:
    module = f"omnistage_{service}.engines"
    if not _installed(service) or importlib.util.find_spec(module) is None:
        return _Told()
    engines = importlib.import_module(module)
    unasked = _Told()
    return _Told(
        engines.ENGINES,
        getattr(engines, "checkpoint_fault", unasked.checkpoint_fault),
        getattr(engines, "VOICES", unasked.voices),
    )


def _check_voices(
    result: Explanation, key: str, model: ModelSpec, models: ModelsFile, told: Mapping[str, _Told]
) -> None:
    for engine_key in model.nodes.values():
        engine = models.engines[engine_key]
        there = told[engine.service].voices.get(engine.engine)
        if there is None:
            continue
        for name, voice in model.voices.items():
            if voice not in there:
                result.warnings.append(
                    f"models.{key}.voices.{name}: engine {engine_key} has no voice {voice!r}; "
                    f"there are: {', '.join(there)}"
                )


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
    if "thinker" in model.nodes:
        drawn = f"temperature {model.default_temperature:g}, top_p {model.default_top_p:g}"
        result.lines.append(f"  sampling     {drawn} unless asked otherwise")
    result.lines.append("")


def _ways(graph: Pipeline) -> list[str]:
    return [
        f"{edge.source} -> {edge.destination}"
        + (f": {', '.join(kind.__name__ for kind in edge.carries)}" if edge.carries else "")
        for edge in graph.edges
    ]


def _explain_engine(result: Explanation, key: str, engine: EngineSpec, told: _Told, *, used: bool) -> None:
    unused = "" if used else "  (no model uses it)"
    result.lines.append(f"engine {key}: {engine.engine} on {engine.service}{unused}")
    result.lines.append(f"  devices      {', '.join(engine.devices)}; {engine.slots} requests at once")
    if told.names is not None and engine.engine not in told.names:
        known = ", ".join(told.names)
        result.faults.append(f"engines.{key}.engine: the {engine.service} has no {engine.engine!r}; there are: {known}")
    path: Path | None = None
    if engine.checkpoint is None:
        result.lines.append("  checkpoint   none given")
    else:
        result.lines.append(f"  checkpoint   {engine.checkpoint}")
        try:
            path = locate_checkpoint(engine.checkpoint, None)
        except NotDownloaded:
            result.lines.append("               not here yet: the service downloads it when it starts")
            return
        except ConfigError as error:
            result.lines.append(f"               MISSING: {error.message}")
            result.faults.append(f"engines.{key}.checkpoint: {error.message}")
            return
        result.lines.append(f"               found: {path}")
    if fault := told.checkpoint_fault(engine.engine, path):
        result.faults.append(f"engines.{key}.checkpoint: {fault}")
