"""Construction refuses a graph that cannot work."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from omnistage.contracts import AudioDelta, DecodeFrames, FrameChunk, GenerateText, SpeakText, TextDelta
from omnistage.errors import ConfigError
from omnistage.pipelines import CATALOGUE, GATEWAY, OMNI, SPEECH, Edge, Node, Pipeline, pipeline
from omnistage.subjects import token

FRONT = Node(GATEWAY, "gateway")
TALKER = Node("talker", "talker", SpeakText)
CODEC = Node("codec", "codec", DecodeFrames)
ENTRY = Edge(GATEWAY, "talker", (), starts=True)
FRAMES = Edge("talker", "codec", (FrameChunk,), starts=True)
AUDIO = Edge("codec", GATEWAY, (AudioDelta,))


def _build(nodes: tuple[Node, ...], edges: tuple[Edge, ...]) -> Pipeline:
    return Pipeline(name="p", version=1, about="a test", nodes=nodes, edges=edges)


def test_a_sound_graph_answers_questions() -> None:
    graph = _build((FRONT, TALKER, CODEC), (ENTRY, FRAMES, AUDIO))
    assert graph.stages() == (TALKER, CODEC)
    assert graph.entry() is ENTRY
    assert graph.outputs() == (AUDIO,)
    assert graph.into("codec") == (FRAMES,)
    assert graph.into("talker") == (), "work from the gateway is no edge with data"
    assert graph.out_of("talker") == (FRAMES,)
    assert graph.node("codec") is CODEC
    assert FRAMES.name == "talker-codec"
    with pytest.raises(ConfigError, match="no node 'dit'"):
        graph.node("dit")
    with pytest.raises(FrozenInstanceError):
        graph.name = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("nodes", "edges", "fault"),
    [
        ((FRONT, TALKER, TALKER), (ENTRY,), "same name"),
        ((TALKER, CODEC), (FRAMES,), "no gateway"),
        ((FRONT, TALKER), (ENTRY, Edge("talker", GATEWAY, (AudioDelta,)), ENTRY), "join the same nodes"),
        ((FRONT, TALKER), (ENTRY, Edge("talker", "nobody", (AudioDelta,))), "no node 'nobody'"),
        ((FRONT, TALKER), (ENTRY, Edge("talker", GATEWAY, ())), "carries nothing"),
        ((FRONT, TALKER), (Edge("talker", GATEWAY, (AudioDelta,)),), "exactly one edge out of the gateway"),
        (
            (FRONT, TALKER, CODEC),
            (ENTRY, Edge(GATEWAY, "codec", (), starts=True), AUDIO, Edge("talker", GATEWAY, (AudioDelta,))),
            "exactly one edge out of the gateway",
        ),
        ((FRONT, Node("talker", "talker")), (ENTRY, Edge("talker", GATEWAY, (AudioDelta,))), "names no work"),
        ((FRONT, TALKER, CODEC), (ENTRY, Edge("talker", "codec", (FrameChunk,)), AUDIO), "cannot be reached"),
        ((FRONT, TALKER), (ENTRY,), "sends nothing to the gateway"),
        (
            (FRONT, TALKER, CODEC),
            (ENTRY, FRAMES, Edge("talker", GATEWAY, (AudioDelta,))),
            "nobody takes the output of 'codec'",
        ),
    ],
)
def test_a_graph_that_cannot_work_is_refused(nodes: tuple[Node, ...], edges: tuple[Edge, ...], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        _build(nodes, edges)


def test_a_node_is_started_once() -> None:
    text = Node("text", "thinker", GenerateText)
    edges = (
        Edge(GATEWAY, "text", (), starts=True),
        Edge("text", "talker", (TextDelta,), starts=True),
        Edge("talker", "codec", (FrameChunk,), starts=True),
        Edge("text", "codec", (FrameChunk,), starts=True),
        AUDIO,
    )
    with pytest.raises(ConfigError, match="started by 2 edges"):
        _build((FRONT, text, TALKER, CODEC), edges)


def test_a_service_may_stand_in_a_pipeline_twice() -> None:
    first, second = Node("hear", "thinker", GenerateText), Node("think", "thinker", GenerateText)
    edges = (
        Edge(GATEWAY, "hear", (), starts=True),
        Edge("hear", "think", (TextDelta,), starts=True),
        Edge("think", GATEWAY, (TextDelta,)),
    )
    assert [node.service for node in _build((FRONT, first, second), edges).stages()] == ["thinker", "thinker"]


def test_a_cycle_that_leads_out_is_no_trap() -> None:
    back = Edge("codec", "talker", (FrameChunk,))
    graph = _build((FRONT, TALKER, CODEC), (ENTRY, FRAMES, back, AUDIO))
    assert graph.into("talker") == (back,)


def test_the_catalogue_is_keyed_by_name() -> None:
    assert {graph.name: graph for graph in CATALOGUE.values()} == CATALOGUE
    assert pipeline("speech") is SPEECH
    assert [edge.name for edge in OMNI.outputs()] == ["thinker-gateway", "codec-gateway"]
    with pytest.raises(ConfigError, match="there are: text, speech, omni"):
        pipeline("nonsense")


@pytest.mark.parametrize("graph", CATALOGUE.values(), ids=lambda graph: graph.name)
def test_every_edge_name_fits_into_a_subject(graph: Pipeline) -> None:
    assert [token(edge.name) for edge in graph.edges] == [edge.name for edge in graph.edges]
