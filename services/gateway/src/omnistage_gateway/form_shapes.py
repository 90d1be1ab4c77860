"""From a form to a request shape: fields by name, one file, and nothing else."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from omnistage.errors import InvalidRequest
from omnistage_gateway.body import parse_json
from omnistage_gateway.forms import Form, Upload
from omnistage_gateway.problems import from_validation, missing

M = TypeVar("M", bound=BaseModel)


def shape_of(form: Form, kind: type[M], file: str, json_fields: tuple[str, ...] = ()) -> tuple[M, Upload | None]:
    """A form's fields as a `kind`, and its file.

    Args:
        file: name of the one file that the form may have.
        json_fields: fields that hold JSON; all others are text.

    Raises:
        InvalidRequest: names the field that is missing, unknown or wrong.
    """
    if file in form.fields:
        raise InvalidRequest(f"Invalid value for '{file}': must be a file.", code="invalid_type", param=file)
    unknown = next((name for name in form.files if name != file), None)
    if unknown is not None:
        raise InvalidRequest(f"Unknown parameter: '{unknown}'.", code="unknown_parameter", param=unknown)
    values = {name: _json(name, text) if name in json_fields else text for name, text in form.fields.items()}
    try:
        return kind.model_validate(values), form.files.get(file)
    except ValidationError as error:
        raise from_validation(error, values) from None


def _json(name: str, text: str) -> object:
    try:
        return parse_json(text.encode("utf-8", "replace"), max_depth=2)
    except InvalidRequest:
        raise InvalidRequest(f"Invalid value for '{name}': must be JSON.", param=name) from None


def needed(upload: Upload | None, name: str) -> Upload:
    """The file of a form that must have one. Raises InvalidRequest."""
    if upload is None:
        raise missing(name, "a file")
    return upload
