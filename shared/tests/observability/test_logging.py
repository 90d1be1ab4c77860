"""Logs are JSON, name the request, and never show what a user said."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from omnistage.errors import BusUnavailable, InvalidRequest
from omnistage.observability import describe_error, get_logger, request_context, setup_logging

CANARY = "the heron eats at noon"


@pytest.fixture
def lines() -> Iterator[Callable[[], list[dict[str, Any]]]]:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    stream = io.StringIO()
    setup_logging("info", True, "codec", "codec-1", "1.0", stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    logging.captureWarnings(False)
    root.handlers[:] = before[0]
    root.setLevel(before[1])


def test_a_line_says_who_when_and_what(lines: Callable[[], list[dict[str, Any]]]) -> None:
    get_logger("omnistage.x").info("claimed", deliveries=2)
    (line,) = lines()
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "claimed",
        "deliveries": 2,
        "level": "info",
        "logger": "omnistage.x",
        "service": "codec",
        "instance": "codec-1",
        "version": "1.0",
    }


def test_the_level_holds(lines: Callable[[], list[dict[str, Any]]]) -> None:
    get_logger("omnistage.x").debug("not shown")
    logging.getLogger("httpx").info("not shown")
    assert lines() == []


def test_request_id_is_bound_and_unbound(lines: Callable[[], list[dict[str, Any]]]) -> None:
    log = get_logger("omnistage.x")
    with request_context("r1"):
        log.info("inside")
        logging.getLogger("nats").warning("from a library")
    log.info("outside")
    assert [line.get("request_id") for line in lines()] == ["r1", "r1", None]


def test_user_content_is_withheld(lines: Callable[[], list[dict[str, Any]]]) -> None:
    get_logger("omnistage.x").warning("odd", text=CANARY, prompt=[CANARY], data=b"1234", blob=b"1234", note="y" * 1000)
    (line,) = lines()
    assert line["text"] == line["prompt"] == line["data"] == "<withheld>"
    assert line["blob"] == "<4 bytes>"
    assert len(line["note"]) == 257


def _fail(error: Exception) -> None:
    secret_local = CANARY
    assert secret_local
    raise error


@pytest.mark.parametrize(
    "error", [ValueError(CANARY), KeyError(CANARY), InvalidRequest(f"unknown voice {CANARY}", param="voice")]
)
def test_an_exception_shows_places_but_no_content(lines: Callable[[], list[dict[str, Any]]], error: Exception) -> None:
    try:
        _fail(error)
    except Exception:
        get_logger("omnistage.x").exception("failed")
        logging.getLogger("uvicorn.error").exception("Exception in ASGI application\n")
    shown = lines()
    assert len(shown) == 2
    for line in shown:
        assert CANARY not in json.dumps(line)
        assert line["error"]["type"].endswith(type(error).__name__)
        assert line["error"]["frames"][-1].endswith(" _fail")
        assert line["level"] == "error"


def test_messages_that_cannot_quote_users_are_shown() -> None:
    assert describe_error(OSError(28, "No space left on device"))["message"].endswith("No space left on device")
    assert describe_error(BusUnavailable("no broker"))["message"] == "no broker"
    assert describe_error(BusUnavailable("no broker"))["code"] == BusUnavailable.code
    assert "message" not in describe_error(UnicodeDecodeError("utf-8", b"x", 0, 1, CANARY))
    assert "message" not in describe_error(json.JSONDecodeError(CANARY, "x", 0))


def test_causes_and_groups_are_shown() -> None:
    try:
        try:
            raise OSError(CANARY)
        except OSError as cause:
            raise ValueError(CANARY) from cause
    except ValueError as error:
        description = describe_error(ExceptionGroup("several", [error, TypeError("odd")]))
    assert [member["type"] for member in description["errors"]] == ["builtins.ValueError", "builtins.TypeError"]
    assert description["errors"][0]["cause"]["type"] == "builtins.OSError"


def test_only_the_first_line_of_a_library_record_is_kept(lines: Callable[[], list[dict[str, Any]]]) -> None:
    logging.getLogger("asyncio").error("Task exception was never retrieved\nfuture: <Task exception=%r>", CANARY)
    (line,) = lines()
    assert line["event"] == "Task exception was never retrieved"


def test_extra_fields_of_standard_records_are_shown_and_guarded(lines: Callable[[], list[dict[str, Any]]]) -> None:
    logging.getLogger("omnistage.x").info("counted", extra={"count": 3, "text": CANARY, "color_message": "x"})
    (line,) = lines()
    assert line["count"] == 3
    assert "color_message" not in line
    assert line["text"] == "<withheld>"


def test_warnings_become_log_lines(lines: Callable[[], list[dict[str, Any]]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("careful", UserWarning, stacklevel=1)
    (line,) = lines()
    assert line["level"] == "warning"
    assert "careful" in line["event"]


def test_text_for_people() -> None:
    root = logging.getLogger()
    before = (root.handlers[:], root.level)
    stream = io.StringIO()
    try:
        setup_logging("debug", False, "codec", "codec-1", stream=stream)
        get_logger("omnistage.x").debug("claimed", deliveries=2)
    finally:
        logging.captureWarnings(False)
        root.handlers[:] = before[0]
        root.setLevel(before[1])
    assert "claimed" in stream.getvalue()
    assert "deliveries=2" in stream.getvalue()
