"""Write golden bytes and schemas of the current contract version. Run once per version; what is written stays.

    python tools/golden.py tests/contract/golden

Each message has two files of bytes: one with every field set, one with the required fields alone; and a readable JSON
beside each.
"""

from __future__ import annotations

import base64
import json
import sys
import types
import typing
from pathlib import Path
from typing import Any

import msgspec

from omnistage.contracts import CONTRACT_VERSION, AnyRecord, AnyWork, Control, Message, encode

# Values that are no field's default, by field name where the type alone does not say.
_BY_NAME: dict[str, Any] = {
    "request_id": "0f1e2d3c4b5a69788796a5b4c3d2e1f0",
    "pipeline": "omni",
    "node": "talker",
    "route": {"thinker": "smollm2", "talker": "heart", "codec": "heart-wave"},
    "edge": "talker-codec",
    "dtype": "float32",
    "shape": (2, 3),
    "data": bytes(range(24)),
    "text": "Héllo, wörld.",
    "content": "What is the capital of France?",
    "language": "en-GB",
}
_BY_TYPE: dict[Any, Any] = {str: "name", int: 7, float: 0.25, bool: True, bytes: b"\x00\xff"}
_DEPTH = 3


def example(kind: Any, *, full: bool, name: str = "", depth: int = 0) -> Any:
    """A value of a type: with every field set, or with the required fields alone."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    if kind in _BY_TYPE:
        return _BY_TYPE[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _struct(kind, full=full, depth=depth)
    return _generic(kind, full=full, name=name, depth=depth)


def _struct(kind: type[msgspec.Struct], *, full: bool, depth: int) -> msgspec.Struct:
    hints = typing.get_type_hints(kind)
    fields = [field for field in msgspec.structs.fields(kind) if field.required or (full and depth < _DEPTH)]
    return kind(
        **{field.name: example(hints[field.name], full=full, name=field.name, depth=depth + 1) for field in fields}
    )


def _generic(kind: Any, *, full: bool, name: str, depth: int) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        # The last member that is not None: of a payload that is the reference, whose fields are the richer ones.
        chosen = [argument for argument in arguments if argument is not type(None)][-1]
        return example(chosen, full=full, depth=depth)
    if origin is typing.Literal:
        return arguments[-1]
    if origin is tuple:
        return (example(arguments[0], full=full, depth=depth),)
    if origin is dict:
        return {example(arguments[0], full=full): example(arguments[1], full=full)}
    raise TypeError(f"no example is known for field {name!r} of type {kind!r}")


def messages() -> dict[str, type[Message]]:
    """Tag -> message, for every message that travels by itself."""
    kinds = [*typing.get_args(AnyWork), *typing.get_args(AnyRecord), *typing.get_args(Control)]
    return {str(kind.__struct_config__.tag): kind for kind in kinds}


def schemas() -> dict[str, Any]:
    """JSON schema of the three unions."""
    unions = {"work": AnyWork, "record": AnyRecord, "control": Control}
    shown, components = msgspec.json.schema_components(unions.values(), ref_template="#/components/{name}")
    return {"unions": dict(zip(unions, shown, strict=True)), "components": components}


def readable(body: bytes) -> str:
    """A message's bytes as JSON, with binary data in base64."""
    content = msgspec.msgpack.decode(body)
    return (
        json.dumps(content, indent=2, ensure_ascii=False, default=lambda value: base64.b64encode(value).decode()) + "\n"
    )


def main() -> None:
    """Write what is missing; never touch what is there."""
    folder = Path(sys.argv[1]) / f"v1.{CONTRACT_VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    content = {folder / "schema.json": (json.dumps(schemas(), indent=2, sort_keys=True) + "\n").encode()}
    for tag, kind in messages().items():
        for suffix, full in (("", True), (".minimal", False)):
            body = encode(example(kind, full=full))
            content[folder / f"{tag}{suffix}.msgpack"] = body
            content[folder / f"{tag}{suffix}.json"] = readable(body).encode()
    for path, data in content.items():
        if not path.exists():
            path.write_bytes(data)
            print(path)


if __name__ == "__main__":
    main()
