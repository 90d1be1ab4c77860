"""Run the thinker: settings -> bootstrap -> run. Or compare its models with their references: `parity FOLDER`."""

from __future__ import annotations

import sys

from omnistage.config import limit_threads
from omnistage.errors import ConfigError
from omnistage_thinker.settings import read_settings

EXIT_FAILED_START = 3


def main() -> None:
    """Entry point of `omnistage-thinker` and `python -m omnistage_thinker`; with `parity FOLDER` it compares."""
    if sys.argv[1:2] == ["parity"]:
        limit_threads(1)
        from omnistage_thinker.parity import main as compare

        sys.exit(compare(sys.argv[2:]))
    try:
        settings = read_settings()
    except ConfigError as error:
        print(f"omnistage-thinker: {error.message}", file=sys.stderr)  # noqa: T201 - before logging exists
        sys.exit(EXIT_FAILED_START)
    # Numeric libraries read their thread counts when they are imported, so nothing that imports them comes before.
    limit_threads(settings.threads)
    from omnistage.runtime.service import run_stage
    from omnistage_thinker.bootstrap import service

    sys.exit(run_stage(service(), settings))


if __name__ == "__main__":
    main()
