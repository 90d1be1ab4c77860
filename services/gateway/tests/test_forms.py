"""Forms with files: what fits is read, and every bound holds."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request
from hypothesis import given
from hypothesis import strategies as st

from omnistage.config import load_models
from omnistage.errors import InvalidRequest
from omnistage.observability import Metrics
from omnistage_gateway.app import create_app
from omnistage_gateway.forms import Form, read_form
from omnistage_gateway.limits import Limits

LIMITS = Limits(body_bytes=40_000, form_files=2, form_fields=3, form_field_bytes=1000, form_file_bytes=20_000)


def served(seen: list[Form]) -> FastAPI:
    """The gateway with an endpoint that reads a form."""
    app = create_app(
        dispatcher=None,  # type: ignore[arg-type] # the endpoint of this test asks for none
        models=load_models(),
        metrics=Metrics("gateway", "test"),
        limits=LIMITS,
    )

    @app.post("/form")
    async def form(request: Request) -> dict[str, Any]:
        seen.append(await read_form(request, LIMITS))
        return {}

    return app


@pytest.fixture
def seen() -> list[Form]:
    return []


@pytest.fixture
async def http(seen: list[Form]) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(served(seen)), base_url="http://gateway") as client:
        yield client


async def test_fields_and_files_are_read(http: httpx.AsyncClient, seen: list[Form]) -> None:
    file = ("C:\\my\\..\\voice.wav", b"RIFF\0\xff", "audio/wav")
    answer = await http.post("/form", data={"name": "Ü", "consent": "yes"}, files={"audio_sample": file})
    assert answer.status_code == 200
    assert seen[0].fields == {"name": "Ü", "consent": "yes"}
    upload = seen[0].files["audio_sample"]
    assert (upload.data, upload.filename, upload.content_type) == (b"RIFF\0\xff", "voice.wav", "audio/wav")


@pytest.mark.parametrize(
    ("data", "files", "status", "code"),
    [
        ({str(n): "x" for n in range(4)}, {"f": b"1"}, 400, "invalid_form"),
        ({}, {str(n): b"x" for n in range(3)}, 400, "invalid_form"),
        ({"a": "x" * 1001}, {"f": b"1"}, 400, "invalid_form"),
        ({}, {"f": b"x" * 20_001}, 413, "payload_too_large"),
        ({}, {"f": b"x" * 20_000, "g": b"x" * 20_000}, 413, "payload_too_large"),
        ({"../../x": "x"}, {"f": b"1"}, 400, "invalid_form"),
        ({"f": "x"}, {"f": b"1"}, 400, "duplicate_key"),
        ({"a": ["x", "y"]}, {"f": b"1"}, 400, "duplicate_key"),
    ],
)
async def test_every_bound_holds(
    http: httpx.AsyncClient, seen: list[Form], data: Any, files: Any, status: int, code: str
) -> None:
    answer = await http.post("/form", data=data, files=files)
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert seen == []


async def test_what_just_fits(http: httpx.AsyncClient, seen: list[Form]) -> None:
    answer = await http.post(
        "/form", data={str(n): "x" * 1000 for n in range(3)}, files={"f": b"x" * 20_000, "g": b"y" * 10_000}
    )
    assert answer.status_code == 200
    assert len(seen[0].files["f"].data) == 20_000


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        ("application/json", b"{}", 415),
        ("", b"", 415),
        ("multipart/form-data", b"x", 400),
        ("multipart/form-data; boundary=x", b"garbage", 400),
        ("multipart/form-data; boundary=x", b"--x\r\nContent-Disposition: form-data\r\n\r\nv\r\n--x--\r\n", 400),
    ],
)
async def test_what_is_no_form(http: httpx.AsyncClient, content_type: str, body: bytes, status: int) -> None:
    answer = await http.post("/form", content=body, headers={"content-type": content_type})
    assert answer.status_code == status
    assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}


@given(st.binary(max_size=300) | st.lists(st.sampled_from([b"--x", b"\r\n", b"a:b", b"--", b"\xff"])).map(b"".join))
async def test_any_bytes_are_a_form_or_refused(body: bytes) -> None:
    sent = [{"type": "http.request", "body": body}]

    async def receive() -> Any:
        return sent.pop()

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [(b"content-type", b"multipart/form-data; boundary=x")],
    }
    with contextlib.suppress(InvalidRequest):
        form = await read_form(Request(scope, receive), LIMITS)
        assert sum(map(len, form.fields.values())) <= len(body)


async def test_a_form_that_breaks_off_holds_nothing_of_its_last_part(http: httpx.AsyncClient, seen: list[Form]) -> None:
    part = b'--x\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s'
    body = part % (b"a", b"1") + b"\r\n" + part % (b"b", b"2")
    answer = await http.post("/form", content=body, headers={"content-type": "multipart/form-data; boundary=x"})
    assert answer.status_code == 200
    assert seen[0].fields == {"a": "1"}
