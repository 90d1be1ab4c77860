"""Error answers, for the API's documentation."""

from __future__ import annotations

from pydantic import BaseModel


class ErrorDetail(BaseModel):
    """What went wrong: `param` names the field, `code` is for programs, `stage` says where, if not here."""

    message: str
    type: str
    param: str | None
    code: str | None
    stage: str | None = None


class ErrorAnswer(BaseModel):
    error: ErrorDetail
