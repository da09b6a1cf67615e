"""`terraform-provider-skerry`: the plugin that Terraform starts."""

from __future__ import annotations

import sys
import time

READ_SECONDS = 2.0  # until our words are read: Terraform may lose those of a process that has ended


def main() -> int:
    if status := _run():
        sys.stdout.flush()
        time.sleep(READ_SECONDS)
    return status


def _run() -> int:
    try:
        from skerry_terraform.kit.server import serve
        from skerry_terraform.provider.provider import SKERRY
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("skerry"):
            raise  # ours and gone: a bug, not a missing extra
        sys.stdout.write(  # what Terraform quotes of a plugin that does not start
            f"the skerry provider is not installed whole (no module {error.name!r}); "
            "run `pip install '.[terraform]'` in Skerry's repository\n"
        )
        return 1
    return serve(SKERRY)


if __name__ == "__main__":
    sys.exit(main())
