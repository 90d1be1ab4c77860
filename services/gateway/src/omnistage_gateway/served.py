"""The models that are served, as a request finds them: names, voices, and what a model can do."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from omnistage.config import ModelsFile, ModelSpec
from omnistage.contracts import AudioDelta, TextDelta, Work
from omnistage.errors import InvalidRequest, NotFound
from omnistage_gateway.schemas.base import Voice, voice_name


@dataclass(frozen=True)
class Served:
    """A model as a request finds it: its key, its entry in the models file."""

    key: str
    spec: ModelSpec


def find_model(models: ModelsFile, name: str) -> Served:
    """The served model behind a name or alias.

    Raises:
        NotFound: there is none.
    """
    key = models.names().get(name)
    if key is None:
        raise NotFound(f"The model '{name[:200]}' does not exist.", code="model_not_found", param="model")
    return Served(key, models.models[key])


def entry_work(spec: ModelSpec) -> type[Work] | None:
    """The message that a model's pipeline begins with: what the model can be asked."""
    return spec.graph.node(spec.graph.entry().destination).work


def makes_audio(spec: ModelSpec) -> bool:
    """Whether audio comes out of the model's pipeline."""
    return any(AudioDelta in edge.carries for edge in spec.graph.outputs())


def talker_engine(spec: ModelSpec) -> str:
    """The engine that speaks for a model that makes audio."""
    return next(spec.nodes[node.name] for node in spec.graph.stages() if node.service == "talker")


def engine_voice(served: Served, asked: Voice | None, param: str) -> str:
    """The engine's own name of a voice.

    Raises:
        InvalidRequest: the model has no such voice (the message lists those it has), or none was asked for and the
            model has no default.
    """
    name = served.spec.default_voice if asked is None else voice_name(asked)
    if name is None:
        raise InvalidRequest(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)
    try:
        return served.spec.voices[name]
    except KeyError:
        known = ", ".join(served.spec.voices)
        raise InvalidRequest(
            f"Invalid value for '{param}': model '{served.key}' has no voice {name[:100]!r}. Its voices: {known}.",
            param=param,
        ) from None


def modalities(spec: ModelSpec) -> list[str]:
    """What comes out of the model's pipeline: "text", "audio" or both."""
    carried = {kind for edge in spec.graph.outputs() for kind in edge.carries}
    return [name for name, kind in (("text", TextDelta), ("audio", AudioDelta)) if kind in carried]


def fingerprint(models: ModelsFile, key: str, version: str) -> str:
    """Changes whenever an answer may: with the model's entry, its engines or the version."""
    spec = models.models[key]
    parts = [version, spec.model_dump_json(), *(models.engines[name].model_dump_json() for name in spec.nodes.values())]
    return "fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
