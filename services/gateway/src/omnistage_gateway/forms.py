"""Request bodies with files: multipart forms, read once, every part of them bounded."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fastapi import Request
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartException

from omnistage.errors import InvalidRequest, PayloadTooLarge
from omnistage_gateway.body import UnsupportedMediaType
from omnistage_gateway.limits import Limits

_NAME = re.compile(r"[A-Za-z0-9_.\[\]-]{1,128}")
_MAX_FILENAME = 255


@dataclass(frozen=True)
class Upload:
    """A file in a form.

    Attributes:
        filename: as the client calls it, without folders; for people and for its ending, never for a path.
        content_type: as the client declares it; empty if it does not.
    """

    data: bytes
    filename: str
    content_type: str


@dataclass(frozen=True)
class Form:
    """A form: each name once, as a field or as a file."""

    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, Upload] = field(default_factory=dict)


async def read_form(request: Request, limits: Limits) -> Form:
    """The request's body as a form.

    Raises:
        UnsupportedMediaType: the content type is not multipart/form-data.
        InvalidRequest: malformed, too many parts, a name twice or of odd characters.
        PayloadTooLarge: a field or file is too large.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "multipart/form-data":
        raise UnsupportedMediaType(
            f"Unsupported Content-Type {media_type[:100]!r}; send the body as 'multipart/form-data'."
        )
    try:
        async with request.form(
            max_files=limits.form_files, max_fields=limits.form_fields, max_part_size=limits.form_field_bytes
        ) as parts:
            return await _read(parts.multi_items(), limits)
    except (HTTPException, MultiPartException) as error:
        reason = error.detail if isinstance(error, HTTPException) else error.message
        raise InvalidRequest(f"The form cannot be read: {reason}", code="invalid_form") from None


async def _read(parts: list[tuple[str, UploadFile | str]], limits: Limits) -> Form:
    form = Form()
    for name, value in parts:
        if not _NAME.fullmatch(name):
            raise InvalidRequest("The name of a field holds characters that no name has.", code="invalid_form")
        if name in form.fields or name in form.files:
            raise InvalidRequest(f"'{name}' stands twice in the form.", code="duplicate_key", param=name)
        if isinstance(value, str):
            form.fields[name] = value
            continue
        if (value.size or 0) > limits.form_file_bytes:
            error = PayloadTooLarge(f"The file '{name}' is larger than {limits.form_file_bytes} bytes.")
            error.param = name
            raise error
        form.files[name] = Upload(await value.read(), _plain(value.filename or ""), value.content_type or "")
    return form


def _plain(filename: str) -> str:
    """The last part of a path of either kind of system, without what cannot be printed."""
    last = re.split(r"[/\\]", filename)[-1]
    printable = "".join(char for char in last if char.isprintable())[:_MAX_FILENAME]
    return "" if printable in (".", "..") else printable
