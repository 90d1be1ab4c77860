"""deploy/models.yaml: which models are served, and how. Typed, unknown keys refused, overlays deep-merged.

`engines` are what stages load; `models` are what clients ask for: a pipeline and, per node, the engine that answers.
An engine may serve several models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from omnistage.config.yaml_file import read_mapping
from omnistage.errors import ConfigError
from omnistage.pipelines import GATEWAY, Pipeline, pipeline

Key = str
ServiceName = Literal["thinker", "talker", "codec", "dit"]
_KEY = re.compile(r"[a-z0-9_-]{1,64}")


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EngineSpec(_Strict):
    """What one stage loads.

    Attributes:
        service: which service runs it.
        engine: implementation within the service, e.g. "torch" or "hibari".
        checkpoint: "package:NAME/FILE" inside an installed package, "hub:ORGANISATION/NAME@REVISION" of a model hub,
            or the path of a file or folder.
        devices: a list, e.g. [cpu] or ["cuda:0"].
        slots: requests that an instance runs at once.
        settings: the engine's own; checked by the engine.
    """

    service: ServiceName
    engine: str
    checkpoint: str | None = None
    devices: tuple[str, ...] = ("cpu",)
    slots: int = Field(4, ge=1, le=4096)
    settings: dict[str, Any] = Field(default_factory=dict)


class ModelSpec(_Strict):
    """What a client may name as `model`.

    Attributes:
        pipeline: the way its requests go.
        nodes: node of the pipeline -> engine key.
        aliases: other names under which clients know it.
        voices: name that clients use -> the engine's own voice, for models that speak.
        default_voice: one of the names in `voices`.
        accepts: optional request fields that the model can honour beside those that its engine announces.
        max_input_chars: limit of `input` for speech.
        max_output_tokens: ceiling of an answer.
        default_temperature, default_top_p: of answers whose request names none.
        deadline_s: how long a request may take in all.
        owned_by, description: shown by GET /v1/models.
    """

    pipeline: str
    nodes: dict[str, str]
    aliases: tuple[str, ...] = ()
    voices: dict[str, str] = Field(default_factory=dict)
    default_voice: str | None = None
    accepts: tuple[str, ...] = ()
    max_input_chars: int = Field(4096, ge=1)
    max_output_tokens: int = Field(1024, ge=1)
    default_temperature: float = Field(1.0, ge=0, le=2)
    default_top_p: float = Field(1.0, gt=0, le=1)
    deadline_s: float = Field(300.0, gt=0)
    owned_by: str = "omnistage"
    description: str = ""

    @property
    def graph(self) -> Pipeline:
        return pipeline(self.pipeline)


Fault = tuple[tuple[str, ...], str]
"""Where something is wrong (e.g. models, NAME, nodes), and what."""


class _Faulty(ConfigError):
    """Entries that are well-formed but do not fit together."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__("; ".join(map(_told, faults)))
        self.faults = faults


def _told(fault: Fault) -> str:
    where, what = fault
    return f"{'.'.join(where)}: {what}"


class ModelsFile(_Strict):
    """The whole file, checked as a whole."""

    version: Literal[1]
    engines: dict[str, EngineSpec]
    models: dict[str, ModelSpec]

    def model_post_init(self, context: Any, /) -> None:
        faults = [*self._wrong_keys(), *self._wrong_models(), *self._wrong_names()]
        if faults:
            raise _Faulty(faults)

    def of_service(self, service: str, only: Iterable[str] = ()) -> dict[str, EngineSpec]:
        """Engines of a service, or those named; raises ConfigError for a name that is none of its engines."""
        mine = {key: spec for key, spec in self.engines.items() if spec.service == service}
        wanted = tuple(only)
        for key in wanted:
            if key not in mine:
                raise ConfigError(f"engine {key!r} is not one of the {service}'s: {', '.join(mine) or 'none'}")
        return {key: spec for key, spec in mine.items() if not wanted or key in wanted}

    def names(self) -> dict[str, str]:
        """Every name that a client may use -> model key."""
        return {name: key for key, model in self.models.items() for name in (key, *model.aliases)}

    def _wrong_keys(self) -> Iterator[Fault]:
        for section, keys in (("engines", self.engines), ("models", self.models)):
            for key in keys:
                if not _KEY.fullmatch(key):
                    yield (section, key), "a key may have only a-z, 0-9, _ and -"

    def _wrong_models(self) -> Iterator[Fault]:
        for name, model in self.models.items():
            try:
                graph = model.graph
            except ConfigError as error:
                yield ("models", name, "pipeline"), error.message
            else:
                yield from self._wrong_nodes(name, model, graph)
            if model.default_voice is not None and model.default_voice not in model.voices:
                yield ("models", name, "default_voice"), f"{model.default_voice!r} is not in voices"

    def _wrong_nodes(self, name: str, model: ModelSpec, graph: Pipeline) -> Iterator[Fault]:
        stages = {node.name: node for node in graph.nodes if node.name != GATEWAY}
        here = ("models", name, "nodes")
        for node in model.nodes:
            if node not in stages:
                yield (*here, node), f"pipeline {graph.name!r} has no such node"
        for node, stage in stages.items():
            key = model.nodes.get(node)
            if key is None:
                yield here, f"node {node!r} of pipeline {graph.name!r} has no engine"
            elif key not in self.engines:
                yield (*here, node), f"there is no engine {key!r}"
            elif self.engines[key].service != stage.service:
                yield (*here, node), f"engine {key!r} is not a {stage.service}'s"

    def _wrong_names(self) -> Iterator[Fault]:
        owner: dict[str, str] = {}
        for key, model in self.models.items():
            for name in (key, *model.aliases):
                if owner.setdefault(name, key) != key:
                    yield ("models", key, "aliases"), f"{name!r} already means {owner[name]!r}"


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Deep merge: mappings by key, null removes a key, anything else replaces."""
    result = dict(base)
    for key, value in overlay.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merge(result[key], value)
        else:
            result[key] = value
    return result


def default_models_path() -> Path:
    """deploy/models.yaml below the current folder, or beside the installed sources."""
    here = Path("deploy/models.yaml")
    return here if here.exists() else Path(__file__).resolve().parents[4] / "deploy" / "models.yaml"


def load_models(paths: Iterable[Path] = ()) -> ModelsFile:
    """Read a models file and its overlays, in order.

    Raises:
        ConfigError: a file cannot be read, or a key or value is wrong; names the file and the key.
    """
    files = tuple(paths) or (default_models_path(),)
    models, faults = read_models(files)
    if faults:
        raise ConfigError(f"{', '.join(map(str, files))}: {'; '.join(faults)}")
    return models


def read_models(paths: Iterable[Path] = ()) -> tuple[ModelsFile, list[str]]:
    """Read as much of a models file and its overlays as can be understood.

    Returns:
        The entries that are right, without models whose engines are not, and what is wrong with the others.

    Raises:
        ConfigError: a file cannot be read, or nothing of it is right.
    """
    files = tuple(paths) or (default_models_path(),)
    data: dict[str, Any] = {}
    for path in files:
        data = merge(data, read_mapping(path))
    faults: list[str] = []
    while True:
        try:
            return ModelsFile.model_validate(data), faults
        except ValidationError as error:
            found = _of_types(error)
        except _Faulty as error:
            found = error.faults
        faults += map(_told, found)
        rest = _without(data, {where[:2] for where, _ in found})
        if rest == data:
            raise ConfigError(f"{', '.join(map(str, files))}: {'; '.join(faults)}")
        data = rest


def _of_types(error: ValidationError) -> list[Fault]:
    faults = error.errors(include_url=False, include_input=False)
    return [(tuple(str(part) for part in fault["loc"]), fault["msg"]) for fault in faults]


def _without(data: Mapping[str, Any], wrong: Set[tuple[str, ...]]) -> dict[str, Any]:
    """The file without entries that are wrong and without models that use such engines."""
    rest = dict(data)
    for section in ("engines", "models"):
        entries = data.get(section)
        if isinstance(entries, Mapping):
            rest[section] = {key: entry for key, entry in entries.items() if (section, str(key)) not in wrong}
    lost = {where[1] for where in wrong if len(where) > 1 and where[0] == "engines"}
    if lost and isinstance(rest.get("models"), Mapping):
        rest["models"] = {key: model for key, model in rest["models"].items() if not _uses(model, lost)}
    return rest


def _uses(model: Any, engines: Set[str]) -> bool:
    nodes = model.get("nodes") if isinstance(model, Mapping) else None
    return isinstance(nodes, Mapping) and any(str(engine) in engines for engine in nodes.values())
