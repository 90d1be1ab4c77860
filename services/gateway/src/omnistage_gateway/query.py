"""Query parameters: those that an endpoint does not know are refused, never ignored."""

from __future__ import annotations

from fastapi import Request

from omnistage.errors import InvalidRequest


def only_known(request: Request, *names: str) -> None:
    """Refuse query parameters of other names. Raises InvalidRequest naming the first."""
    unknown = next((name for name in request.query_params if name not in names), None)
    if unknown is not None:
        raise InvalidRequest(f"Unknown parameter: '{unknown[:100]}'.", code="unknown_parameter", param=unknown[:100])
