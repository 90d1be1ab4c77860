"""The pipelines that exist. The life of a request, whichever pipeline it takes:

1. The gateway checks the HTTP request, translates it to the entry node's work message and puts it into its line.
2. When the engines on the route have a free slot, the gateway subscribes to the request's out edges and publishes
   the work item.
3. Any free instance of the entry stage claims it and opens the logs of its edges with a new epoch.
4. Its handler runs the engine and appends each result to the edge's log, bulk bytes to the tensor plane first.
5. With its first chunk (at the latest) it publishes the next stage's work item, whose instance reads the log.
6. The gateway reads the out logs as they grow and streams to the client.
7. Every edge ends with an explicit end record; the stage then acknowledges its claim.
8. On an error a stage appends an error record to its logs; readers pass it on; the gateway answers with it.
9. On cancellation the gateway writes a tombstone and tells every stage; all drop the request at once.
10. In the end the gateway writes the tombstone, purges the request's logs and tells the stages to forget it.
"""

from __future__ import annotations

from omnistage.contracts import (
    AudioDelta,
    AudioDone,
    DecodeFrames,
    EncodedReference,
    EncodeReference,
    FrameChunk,
    GenerateText,
    SpeakText,
    TextChunk,
    TextDelta,
    TextDone,
    ThinkerRows,
)
from omnistage.errors import ConfigError
from omnistage.pipelines.graph import GATEWAY, Edge, Node, Pipeline

_gateway = Node(GATEWAY, "gateway")
_thinker = Node("thinker", "thinker", GenerateText)
_talker = Node("talker", "talker", SpeakText)
_codec = Node("codec", "codec", DecodeFrames)

TEXT = Pipeline(
    name="text",
    version=1,
    about="Text in, text out",
    nodes=(_gateway, _thinker),
    edges=(
        Edge(GATEWAY, "thinker", (), starts=True),
        Edge("thinker", GATEWAY, (TextDelta, TextDone)),
    ),
)

SPEECH = Pipeline(
    name="speech",
    version=1,
    about="Text in, speech out",
    nodes=(_gateway, _talker, _codec),
    edges=(
        Edge(GATEWAY, "talker", (), starts=True),
        Edge("talker", "codec", (FrameChunk,), starts=True),
        Edge("codec", GATEWAY, (AudioDelta, AudioDone)),
    ),
)

OMNI = Pipeline(
    name="omni",
    version=1,
    about="A conversation in, text and speech out; speech begins while the text is still being written",
    nodes=(_gateway, _thinker, _talker, _codec),
    edges=(
        Edge(GATEWAY, "thinker", (), starts=True),
        Edge("thinker", GATEWAY, (TextDelta, TextDone)),
        Edge("thinker", "talker", (TextChunk, ThinkerRows), starts=True),
        Edge("talker", "codec", (FrameChunk,), starts=True),
        Edge("codec", GATEWAY, (AudioDelta, AudioDone)),
    ),
)

REFERENCE = Pipeline(
    name="reference",
    version=1,
    about="A recording in, what a voice is cloned from out",
    nodes=(_gateway, Node("codec", "codec", EncodeReference)),
    edges=(
        Edge(GATEWAY, "codec", (), starts=True),
        Edge("codec", GATEWAY, (EncodedReference,)),
    ),
)

CATALOGUE: dict[str, Pipeline] = {pipeline.name: pipeline for pipeline in (TEXT, SPEECH, OMNI, REFERENCE)}


def pipeline(name: str) -> Pipeline:
    """The pipeline of that name. Raises ConfigError if there is none."""
    try:
        return CATALOGUE[name]
    except KeyError:
        raise ConfigError(f"unknown pipeline {name!r}; there are: {', '.join(CATALOGUE)}") from None
