"""`python -m skerry_core.runners.compiler SET VARIANT CACHE_DIR`: see `kernel_cache`."""

from __future__ import annotations

import sys

from skerry_core.runners.kernel_cache import main

if __name__ == "__main__":
    main(*sys.argv[1:])
