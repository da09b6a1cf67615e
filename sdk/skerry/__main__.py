"""The `skerry` command. The platform behind it is optional; without it, say how to get it."""

from __future__ import annotations

import importlib
import sys

MISSING_PLATFORM = 2  # exit code


def main() -> None:
    """Hand over to the platform's command line.

    It is imported by name, because the SDK alone must neither contain nor require it.
    """
    try:
        command = importlib.import_module("skerry_edge.cli")
    except ModuleNotFoundError as exc:
        if exc.name is None or exc.name.startswith(("skerry.", "skerry_edge.")):
            raise  # ours and gone: a bug, not a missing extra
        sys.stderr.write(
            f"skerry: the platform is not installed (no module {exc.name!r}).\n"
            'Install it with:  pip install "skerry[platform]"\n'
        )
        raise SystemExit(MISSING_PLATFORM) from None
    command.main()


if __name__ == "__main__":
    main()
