"""Which way requests go: the one declaration that subjects, streams, handlers and the docs' diagram derive from."""

from omnistage.pipelines.catalogue import CATALOGUE, OMNI, SPEECH, TEXT, pipeline
from omnistage.pipelines.graph import GATEWAY, Edge, Node, Pipeline, Service

__all__ = ["CATALOGUE", "GATEWAY", "OMNI", "SPEECH", "TEXT", "Edge", "Node", "Pipeline", "Service", "pipeline"]
