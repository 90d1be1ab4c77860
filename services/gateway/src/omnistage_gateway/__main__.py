"""Run the gateway: settings -> bootstrap -> run."""

from __future__ import annotations

import sys

from omnistage.config import limit_threads
from omnistage.errors import ConfigError
from omnistage_gateway.settings import read_settings

EXIT_FAILED_START = 3


def main() -> None:
    """Entry point of `omnistage-gateway` and `python -m omnistage_gateway`."""
    try:
        settings = read_settings()
        settings.keys()
    except ConfigError as error:
        print(f"omnistage-gateway: {error.message}", file=sys.stderr)  # noqa: T201 - before logging exists
        sys.exit(EXIT_FAILED_START)
    limit_threads(settings.threads)
    from omnistage_gateway.bootstrap import run

    sys.exit(run(settings))


if __name__ == "__main__":
    main()
