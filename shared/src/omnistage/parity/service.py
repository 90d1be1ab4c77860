"""The command `python -m omnistage_SERVICE parity FOLDER [--json]`, the same for every service."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from omnistage.errors import ConfigError, OmnistageError
from omnistage.parity.comparison import Comparison
from omnistage.parity.folders import family_folders
from omnistage.parity.table import table_lines

Check = Callable[[Path], Iterator[Comparison]]
"""Runs a family's models on the fixtures of a family folder."""


def run_checks(service: str, checks: Mapping[str, Check], arguments: Sequence[str]) -> int:
    """Compare, print, and return the exit code: 0 all within tolerance, 1 a miss, an error or nothing to compare.

    Args:
        service: short name, e.g. "codec".
        checks: model_type of a checkpoint -> the check of its family.
        arguments: what follows the word `parity` on the command line. With `--json` the rows are printed one JSON
            object a line, and finding nothing to compare is no fault (another service may find something).
    """
    parser = argparse.ArgumentParser(prog=f"omnistage_{service} parity")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args(arguments)
    try:
        rows = list(_rows(options.folder, checks))
        if not rows and not options.as_json:
            raise ConfigError(f"{options.folder} has no fixtures of a family of the {service}: {', '.join(checks)}")
    except OmnistageError as error:
        sys.stderr.write(f"omnistage_{service} parity: {error.message}\n")
        return 1
    lines = [json.dumps(asdict(row)) for row in rows] if options.as_json else table_lines(rows)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0 if all(row.passed for row in rows) else 1


def _rows(folder: Path, checks: Mapping[str, Check]) -> Iterator[Comparison]:
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder")
    for model_type, check in checks.items():
        for found in family_folders(folder, model_type):
            yield from check(found)
