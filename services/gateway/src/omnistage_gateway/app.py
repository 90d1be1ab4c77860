"""The HTTP application: everything is handed in, nothing is read from the environment."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from opentelemetry.trace import NoOpTracer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Match
from starlette.types import Scope

from omnistage.config import ModelsFile
from omnistage.errors import InvalidRequest, NotFound, OmnistageError, StageFailed
from omnistage.observability import Metrics, Tracing
from omnistage_gateway import __version__
from omnistage_gateway.answer import to_json
from omnistage_gateway.audio import EncoderPool
from omnistage_gateway.cloning import Cloning
from omnistage_gateway.context import Gateway
from omnistage_gateway.dispatch.interface import Dispatcher
from omnistage_gateway.fetching import UrlLoader
from omnistage_gateway.keyring import Keyring
from omnistage_gateway.limits import Limits
from omnistage_gateway.middleware import Authenticate, LimitBody, Observe, ReportCrash
from omnistage_gateway.openapi import document
from omnistage_gateway.problems import error_body, error_headers, http_status
from omnistage_gateway.routers import audio_speech, chat, health, voice_consents
from omnistage_gateway.routers import models as model_list
from omnistage_gateway.routers import voices as voice_list
from omnistage_gateway.transcripts import MemoryTranscripts, Transcripts
from omnistage_gateway.voices import VoiceLibrary

_ABOUT = "Omni-modality models behind OpenAI's API: speech, conversations that speak, models and voices."
_EXPOSED = ("x-request-id", "retry-after", "omnistage-model", "omnistage-finish-reason")


class MethodNotAllowed(InvalidRequest):
    """The path exists, for other methods."""

    code = "method_not_allowed"
    status = 405


def create_app(
    *,
    dispatcher: Dispatcher,
    models: ModelsFile,
    metrics: Metrics,
    keyring: Keyring | None = None,
    limits: Limits | None = None,
    transcripts: Transcripts | None = None,
    encoders: EncoderPool | None = None,
    urls: UrlLoader | None = None,
    voices: VoiceLibrary | None = None,
    tracing: Tracing | None = None,
    cors_origins: Sequence[str] = (),
) -> FastAPI:
    """The application.

    Args:
        dispatcher: runs the requests; started and closed by the caller.
        metrics: of the gateway; shown by GET /metrics.
        keyring: without one everybody may enter.
        transcripts: without any they live in this process.
        encoders: threads for encoding, ended with the application.
        urls: without one the loader's own rules hold: https and data alone, public addresses alone.
        voices: without any they live in this process.
        tracing: without any no spans are recorded.
        cors_origins: origins of browsers' pages that may call; "*" for all; none switches CORS off.
    """
    pool = encoders or EncoderPool()
    loader, library = urls or UrlLoader(), voices or VoiceLibrary.in_memory()

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        pool.shutdown()

    app = _blank(lifespan)
    app.state.gateway = Gateway(
        dispatcher=dispatcher,
        models=models,
        limits=limits or Limits(),
        transcripts=transcripts or MemoryTranscripts(),
        encoders=pool,
        metrics=metrics,
        urls=loader,
        voices=library,
        cloning=Cloning(dispatcher, loader, library),
        created=int(time.time()),
        version=__version__,
    )
    for router in (audio_speech, chat, model_list, voice_list, voice_consents, health):
        app.include_router(router.router)
    # FastAPI's own way to replace its document: https://fastapi.tiangolo.com/how-to/extending-openapi/
    app.openapi = lambda: document(app)  # type: ignore[method-assign]
    _answer_errors(app)
    _add_middleware(app, keyring or Keyring(), limits or Limits(), metrics, tracing, cors_origins)
    return app


def _blank(lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]]) -> FastAPI:
    """The framework without what we do not want of it."""
    return FastAPI(
        title="Omnistage",
        version=__version__,
        description=_ABOUT,
        lifespan=lifespan,
        redirect_slashes=False,
        # The framework's pages for reading load their scripts from elsewhere: blank offline, and a call to strangers.
        docs_url=None,
        redoc_url=None,
    )


def _add_middleware(
    app: FastAPI,
    keyring: Keyring,
    limits: Limits,
    metrics: Metrics,
    tracing: Tracing | None,
    cors_origins: Sequence[str],
) -> None:
    """From the innermost to the outermost."""
    app.add_middleware(ReportCrash)
    app.add_middleware(LimitBody, max_bytes=limits.body_bytes, read_s=limits.read_s)
    app.add_middleware(Authenticate, keyring=keyring)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(cors_origins),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["*"],
            expose_headers=list(_EXPOSED),
        )

    def endpoint_of(scope: Scope) -> str | None:
        return next(
            (getattr(route, "path", None) for route in app.routes if route.matches(scope)[0] is not Match.NONE), None
        )

    app.add_middleware(Observe, metrics=metrics, tracing=tracing or Tracing(NoOpTracer()), endpoint_of=endpoint_of)


def _answer_errors(app: FastAPI) -> None:
    async def own(_: Request, error: Exception) -> Response:
        assert isinstance(error, OmnistageError)
        return _answer(error)

    async def framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return _answer(_from_framework(request, error), error.headers)

    async def query(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fault = error.errors()[0]
        name = str(fault["loc"][-1])
        return _answer(InvalidRequest(f"Invalid value for '{name}': {fault['msg']}.", param=name))

    app.add_exception_handler(OmnistageError, own)
    app.add_exception_handler(HTTPException, framework)
    app.add_exception_handler(RequestValidationError, query)


def _answer(error: OmnistageError, headers: object = None) -> Response:
    fields = {**(headers if isinstance(headers, dict) else {}), **error_headers(error)}
    return Response(to_json(error_body(error)), http_status(error), fields, "application/json")


def _from_framework(request: Request, error: HTTPException) -> OmnistageError:
    if error.status_code == 404:
        return NotFound(f"Unknown URL ({request.method} {request.url.path[:200]}).", code="unknown_url")
    if error.status_code == 405:
        return MethodNotAllowed(f"Method {request.method} is not allowed for {request.url.path[:200]}.")
    if error.status_code < 500:
        return InvalidRequest(str(error.detail))
    return StageFailed("The server had an error.", code="internal_error")
