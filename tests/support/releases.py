"""A release that does not exist yet: a copy of our packages, changed as the next contract version may change them.

What the copy adds: optional fields that it really sends (one of them must not be ignored), a record kind that follows
every data record, a control message, a work message, a larger set-up on the broker, another layout of shared memory.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from omnistage.contracts import CONTRACT_VERSION

VERSION = "99.0.0"
"""Of the distributions in the copy."""

NEXT = CONTRACT_VERSION + 1
PACKAGES = ("shared", "services/gateway", "services/thinker", "services/talker", "services/codec")

_CONTRACTS = "__import__('omnistage.contracts').contracts"
_STRUCT = "frozen=True, kw_only=True, omit_defaults=True"

_LATER = f"""

class EdgeMark(Record, {_STRUCT}, tag="edge_mark"):
    note: str


class SingText(Work, {_STRUCT}, tag="sing_text"):
    SINCE: ClassVar[int] = {NEXT}
    text: str


class Hint(Message, {_STRUCT}, tag="hint"):
    note: str


LATER_FIELDS = {{
    "FrameChunk": {{"loudness": 0.5}}, "AudioDelta": {{"level_db": -3.0}}, "TextDelta": {{"elapsed_s": 0.5}}
}}


def hinted(work: Work) -> Work:
    return msgspec.structs.replace(work, hint=7)
"""


@dataclass(frozen=True)
class Release:
    """Packages in a folder of their own.

    Attributes:
        folder: what has to stand on the path.
        python: an interpreter that finds them, as that of an environment of their own would.
    """

    folder: Path
    python: Path


def next_release(root: Path, folder: Path) -> Release:
    """Make the next version of the project in `root`."""
    site = folder / "site"
    for package in PACKAGES:
        source = root / package / "src"
        shutil.copytree(source, site, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
        _describe(site, "omnistage" + package.removeprefix("shared").removeprefix("services").replace("/", "-"))
    _change_contracts(site / "omnistage" / "contracts")
    _change_runtime(site / "omnistage")
    _change_gateway(site / "omnistage_gateway")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={site} exec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)
    return Release(site, python)


LATER_NAMES = frozenset({"hint", "pitch", "loudness", "level_db", "elapsed_s", "zone"})
"""Fields that the next contracts add."""


def contracts_alone(source: Path, folder: Path, name: str) -> None:
    """Copy the contracts of a release to where they can be imported under another name, beside the current ones."""
    target = folder / name
    shutil.copytree(source / "omnistage" / "contracts", target, ignore=shutil.ignore_patterns("__pycache__"))
    for file in target.glob("*.py"):
        file.write_text(file.read_text(encoding="utf-8").replace("omnistage.contracts", name), encoding="utf-8")


def _describe(site: Path, name: str) -> None:
    folder = site / f"{name.replace('-', '_')}-{VERSION}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n", encoding="utf-8")


def _change_contracts(contracts: Path) -> None:
    common = contracts / "common.py"
    change(common, f"CONTRACT_VERSION = {CONTRACT_VERSION}\n", f"CONTRACT_VERSION = {NEXT}\n")
    add_field(common, "Work", "hint: int = 0")
    common.write_text(common.read_text(encoding="utf-8") + _LATER, encoding="utf-8")
    talker = contracts / "talker.py"
    change(
        talker,
        "from __future__ import annotations\n",
        "from __future__ import annotations\nfrom typing import Annotated\n"
        "from omnistage.contracts.versions import since\n",
    )
    add_field(talker, "SpeechOptions", f"pitch: Annotated[float, since({NEXT})] = 1.0")
    add_field(contracts / "codec.py", "FrameChunk", "loudness: float = 0.0")
    add_field(contracts / "output.py", "AudioDelta", "level_db: float = 0.0")
    add_field(contracts / "output.py", "TextDelta", "elapsed_s: float = 0.0")
    control = contracts / "control.py"
    add_field(control, "Presence", 'zone: str = ""')
    change(control, "import Message\n", "import Hint, Message\n")
    control.write_text(control.read_text(encoding="utf-8") + "\nControl = Control | Hint\n", encoding="utf-8")
    change(
        contracts / "__init__.py",
        "\nReadRecord = ",
        "\nfrom omnistage.contracts.common import LATER_FIELDS, EdgeMark, Hint, SingText, hinted\n"
        "AnyWork = AnyWork | SingText\nAnyRecord = AnyRecord | EdgeMark\nReadRecord = ",
    )


def _change_runtime(package: Path) -> None:
    edges = package / "runtime" / "edges.py"
    change(edges, "(*carries, *_ALWAYS)", f"(*carries, *_ALWAYS, {_CONTRACTS}.EdgeMark)")
    change(
        edges,
        "        await self._append(self._record(kind, **fields))\n        self._count += 1\n",
        f"        more = {_CONTRACTS}.LATER_FIELDS.get(kind.__name__, {{}})\n"
        "        await self._append(self._record(kind, **fields, **more))\n"
        "        self._count += 1\n"
        f'        await self._append(self._record({_CONTRACTS}.EdgeMark, note="new"))\n'
        "        self._count += 1\n",
    )
    change(package / "runtime" / "context.py", "encode(work)", f"encode({_CONTRACTS}.hinted(work))")
    presence = package / "runtime" / "presence.py"
    change(presence, "            locality=self._locality,\n", '            locality=self._locality, zone="a",\n')
    change(
        presence,
        "        try:\n            await self._bus.send(",
        "        try:\n"
        f'            await self._bus.send(self._bus.subjects.ctl_everyone(), encode({_CONTRACTS}.Hint(note="new")))\n'
        "            await self._bus.send(",
    )
    arena = package / "tensors" / "arena.py"
    change(arena, 'b"omniarn1"', 'b"omniarn2"')
    topology = package / "transport" / "topology.py"
    version = re.search(r"^VERSION = (\d+)$", topology.read_text(encoding="utf-8"), re.MULTILINE)
    assert version is not None
    change(topology, f"\nVERSION = {version[1]}\n", f"\nVERSION = {int(version[1]) + 1}\n")
    change(topology, '"max_ack_pending": options.max_ack_pending', '"max_ack_pending": options.max_ack_pending + 1')
    change(topology, '"max_msgs": options.work_max_msgs', '"max_msgs": options.work_max_msgs + 1')


def _change_gateway(package: Path) -> None:
    add_field(package / "schemas" / "speech.py", "SpeechRequest", "pitch: float = 1.0")
    change(package / "translate.py", "        speed=native,\n", "        speed=native,\n        pitch=request.pitch,\n")
    edge = package / "dispatch" / "out_edge.py"
    skips = "        if isinstance(record, UnknownRecord):\n"
    change(edge, skips, f"        if isinstance(record, {_CONTRACTS}.EdgeMark):\n            return None\n{skips}")
    change(package / "dispatch" / "runner.py", "encode(packed)", f"encode({_CONTRACTS}.hinted(packed))")


def change(file: Path, old: str, new: str) -> None:
    """Replace what must occur exactly once."""
    text = file.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{file.name} has {text.count(old)} times {old!r}: adapt the next release to it"
    file.write_text(text.replace(old, new), encoding="utf-8")


def add_field(file: Path, kind: str, field: str) -> None:
    """Append a field to a class."""
    text = file.read_text(encoding="utf-8")
    found = re.search(rf"^class {kind}\(.*?(?=^\S|\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{file.name} has no class {kind}"
    body = f"{found[0].rstrip()}\n    {field}\n\n\n"
    file.write_text(text[: found.start()] + body + text[found.end() :], encoding="utf-8")


def without_field(file: Path, kind: str, field: str) -> None:
    """Take a field out of a class, as a version before it would be."""
    text = file.read_text(encoding="utf-8")
    pattern = rf"(^class {kind}\(.*?)^    {field}: [^\n]*\n"
    changed, count = re.subn(pattern, r"\1", text, count=1, flags=re.MULTILINE | re.DOTALL)
    assert count == 1, f"{file.name} has no field {kind}.{field}"
    file.write_text(changed, encoding="utf-8")
