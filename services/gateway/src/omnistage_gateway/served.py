"""The models that are served, as a request finds them: names, voices, and what a model can do."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from omnistage.config import ModelsFile, ModelSpec
from omnistage.contracts import AudioDelta, TextDelta, Work
from omnistage.errors import InvalidRequest, NotFound
from omnistage_gateway.dispatch.fleet_table import EngineView
from omnistage_gateway.schemas.base import Voice, voice_name

UNNAMED_VOICE = "default"
"""What clients that must name a voice say where another field makes it, and what engines announce then."""


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


def voices_of(spec: ModelSpec, view: EngineView) -> dict[str, str]:
    """Name that clients use -> the engine's own voice: those of the models file, else those that the engine announces.

    Engines whose voices are described or cloned announce a voice without a name, which is none of these.
    """
    if spec.voices:
        return dict(spec.voices)
    named = not view.speech.tasks or "custom_voice" in view.speech.tasks
    return {name: name for name in view.voices} if named else {}


def find_voice(voices: Mapping[str, str], asked: str) -> str | None:
    """The engine's own voice behind a name, in whatever case where that is not ambiguous; None if there is none."""
    if asked in voices:
        return voices[asked]
    alike = {own for name, own in voices.items() if name.casefold() == asked.casefold()}
    return alike.pop() if len(alike) == 1 else None


def spoken_voice(served: Served, view: EngineView, asked: Voice | None, param: str = "voice") -> str:
    """The engine's own voice for a request that clones and describes none.

    Args:
        param: the field that names it.

    Raises:
        InvalidRequest: as `engine_voice`.
    """
    voices = voices_of(served.spec, view)
    if asked is None and served.spec.default_voice is None and not served.spec.voices and view.voices:
        return view.voices[0]
    if asked is not None and not voices and voice_name(asked) in view.voices:
        return voice_name(asked)
    return engine_voice(served, asked, param, voices)


def engine_voice(served: Served, asked: Voice | None, param: str, voices: Mapping[str, str] | None = None) -> str:
    """The engine's own name of a voice.

    Args:
        voices: those there are; those of the models file if None.

    Raises:
        InvalidRequest: the model has no such voice (the message lists those it has), or none was asked for and the
            model has no default.
    """
    name = served.spec.default_voice if asked is None else voice_name(asked)
    if name is None:
        raise InvalidRequest(f"Missing required parameter: '{param}'.", code="missing_required_parameter", param=param)
    known = served.spec.voices if voices is None else voices
    own = find_voice(known, name)
    if own is None:
        raise InvalidRequest(
            f"Invalid value for '{param}': model '{served.key}' has no voice {name[:100]!r}. "
            f"Its voices: {', '.join(known) or 'those that you bring along'}.",
            param=param,
        )
    return own


def modalities(spec: ModelSpec) -> list[str]:
    """What comes out of the model's pipeline: "text", "audio" or both."""
    carried = {kind for edge in spec.graph.outputs() for kind in edge.carries}
    return [name for name, kind in (("text", TextDelta), ("audio", AudioDelta)) if kind in carried]


def fingerprint(models: ModelsFile, key: str, version: str) -> str:
    """Changes whenever an answer may: with the model's entry, its engines or the version."""
    spec = models.models[key]
    parts = [version, spec.model_dump_json(), *(models.engines[name].model_dump_json() for name in spec.nodes.values())]
    return "fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
