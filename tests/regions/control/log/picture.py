"""What stores have, and are given."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from skerry_regions.control.desired.store import Store
from skerry_regions.control.desired.transactions import (
    TABLES,
)
from skerry_regions.control.errors import Busy


def rows(store: Store) -> dict[str, list[tuple[object, ...]]]:
    """All that control planes share."""
    return {table: store.select(f"SELECT * FROM {table} ORDER BY 1, 2") for table in TABLES}


def regions(store: Store) -> list[str]:
    return sorted(store.desired.regions())


def again(call: Callable[[], None]) -> None:
    """As whoever reads: until the servers can be used."""
    while True:
        with contextlib.suppress(Busy):
            return call()
