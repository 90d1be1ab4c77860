"""How the person at the terminal can type the command `omnistage` here, for hints that work as they stand."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

_NAME = "omnistage"


def program(started: str, executable: str) -> str:
    """The command as it was started: its bare name if the shell finds it, else its path.

    Args:
        started: `sys.argv[0]`; of `python -m` it is no program.
        executable: the interpreter, whose neighbour the command is.
    """
    path = Path(started)
    if path.name != _NAME:
        path = Path(executable).with_name(_NAME)
    if not path.exists():
        return f"{shlex.quote(executable)} -m omnistage.launcher"
    found = shutil.which(_NAME)
    if found is not None and Path(found).samefile(path):
        return _NAME
    absolute = path.absolute()
    return shlex.quote(os.path.relpath(absolute) if absolute.is_relative_to(Path.cwd()) else str(absolute))


def hint(command: str, data: Path | None = None) -> str:
    """A command of ours to type, e.g. "down", with its data folder where that is not the default one."""
    words = f"{program(sys.argv[0], sys.executable)} {command}"
    return words if data is None or data == Path("data").resolve() else f"{words} --data {shlex.quote(str(data))}"
