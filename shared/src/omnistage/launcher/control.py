"""The launcher's control channel: a Unix socket in the data folder, one JSON line each way.

A socket rather than signals, since `scale` has an argument and `status` an answer; rather than a control subject on
the bus, since it must work while the broker starts, hangs or is dead, and since the file system already says who may
use it (a folder of mode 0700).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from omnistage.errors import OmnistageError
from omnistage.launcher.faults import LauncherError, NotRunning

Operation = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]

_LIMIT_BYTES = 4 << 20
_ANSWER_S = 600.0
"""`scale` answers once new instances are ready."""


@asynccontextmanager
async def serve_control(path: str, operations: dict[str, Operation]) -> AsyncIterator[None]:
    """Answer requests {"op": NAME, ...} by the operation of that name while the context is open."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answer = await _answer(await reader.readline(), operations)
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
        except (OSError, ValueError):
            return  # the asker is gone, or sent a line without end
        finally:
            writer.close()

    server = await asyncio.start_unix_server(handle, path, limit=_LIMIT_BYTES)
    try:
        yield
    finally:
        server.close()


async def _answer(line: bytes, operations: dict[str, Operation]) -> dict[str, Any]:
    try:
        request = json.loads(line)
        operation = operations[request["op"]]
    except (ValueError, KeyError, TypeError):
        return {"error": "unknown request"}
    try:
        return await operation(request)
    except OmnistageError as error:
        return {"error": error.message}


def ask(path: str, op: str, **arguments: Any) -> dict[str, Any]:
    """Send one request to a launcher and return its answer.

    Raises:
        NotRunning: nobody answers at the socket.
        LauncherError: the launcher refused, with its reason.
    """
    return asyncio.run(ask_async(path, op, **arguments))


async def ask_async(path: str, op: str, **arguments: Any) -> dict[str, Any]:
    """As `ask`, from a coroutine."""
    try:
        reader, writer = await asyncio.open_unix_connection(path, limit=_LIMIT_BYTES)
    except OSError as error:
        raise NotRunning(f"the launcher does not answer: {error.strerror or error}") from error
    try:
        async with asyncio.timeout(_ANSWER_S):
            writer.write(json.dumps({"op": op, **arguments}).encode() + b"\n")
            answer = json.loads(await reader.readline())
    except (OSError, ValueError) as error:
        raise NotRunning("the launcher went away without an answer") from error
    finally:
        writer.close()
    if "error" in answer:
        raise LauncherError(answer["error"])
    return dict(answer)
