"""The pipelines cannot lie: each service answers exactly the work that they send it."""

from __future__ import annotations

import importlib
import inspect

from omnistage.contracts import AnyRecord, AnyWork, Work
from omnistage.pipelines import CATALOGUE, GATEWAY


def _work_of(service: str) -> set[type[Work]]:
    return {
        node.work
        for pipeline in CATALOGUE.values()
        for node in pipeline.nodes
        if node.service == service and node.work is not None
    }


def test_handlers_equal_the_edges_that_end_in_the_service(services: list[str]) -> None:
    for service in services:
        if service == GATEWAY:
            continue
        handlers = importlib.import_module(f"omnistage_{service}.handlers").HANDLERS
        assert set(handlers) == _work_of(service), service
        for handler in handlers.values():
            assert inspect.iscoroutinefunction(handler), f"{service}: {handler} is no coroutine function"


def test_pipelines_use_services_that_exist(services: list[str]) -> None:
    used = {node.service for pipeline in CATALOGUE.values() for node in pipeline.nodes}
    assert used == set(services)


def test_every_message_on_the_wire_is_on_some_edge() -> None:
    carried = {kind for pipeline in CATALOGUE.values() for edge in pipeline.edges for kind in edge.carries}
    markers = {"Opened", "Released", "End", "Failed"}
    assert {kind.__name__ for kind in carried} == {kind.__name__ for kind in AnyRecord.__args__} - markers
    started = {node.work for pipeline in CATALOGUE.values() for node in pipeline.nodes if node.work is not None}
    assert started == set(AnyWork.__args__)
