"""`make demo`, as `python -m omnistage.launcher.demo`."""

from __future__ import annotations

import sys

_INTERRUPTED = 130
"""As shells report a program that INT has ended."""


def main() -> None:
    """Entry point. Ctrl-C ends it without a traceback even while its libraries are still being imported."""
    try:
        from omnistage.launcher.demonstration import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
