"""How large, how deep and how slow a request may be."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Bounds that hold for every endpoint.

    Attributes:
        body_bytes: largest request body.
        read_s: how long a request may stand still while it is being sent.
        json_depth: deepest nesting of a JSON body.
        form_files: files in a form.
        form_fields: fields in a form that are no files.
        form_field_bytes: largest of these.
        form_file_bytes: largest file in a form; the whole form is bounded by `body_bytes` besides.
        transcript_s: how long an assistant's audio can be referred to by its id.
    """

    body_bytes: int = 16 * 1024 * 1024
    read_s: float = 30.0
    json_depth: int = 32
    form_files: int = 4
    form_fields: int = 32
    form_field_bytes: int = 256 * 1024
    form_file_bytes: int = 25 * 1024 * 1024
    transcript_s: float = 3600.0
