"""The `skerry` command. The platform behind it is optional; without it, say how to get it."""

from __future__ import annotations

import importlib
import sys

MISSING_PLATFORM = 2  # exit status
INSTALL = 'In a copy of its repository, install it with:  pip install ".[platform]"'
OURS = tuple(f"skerry{part}." for part in ("", "_cli", "_edge", "_dns", "_regions", "_core"))


def main() -> int:
    """Hand over to the platform's command line; returns the process's exit status.

    It is imported by name, because the SDK alone must neither contain nor require it. Its commands
    import what they need when they run, so a missing extra may show only then.
    """
    try:
        status: int = importlib.import_module("skerry_cli").main()
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.startswith(OURS):
            raise  # ours and gone: a bug, not a missing extra
        sys.stderr.write(
            f"skerry: the platform is not installed (no module {exc.name!r}).\n{INSTALL}\n"
        )
        return MISSING_PLATFORM
    return status


if __name__ == "__main__":
    sys.exit(main())
