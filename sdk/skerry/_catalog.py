"""Lists of models: pages requested until one is empty. No I/O here."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from skerry._exchange import Step
from skerry.errors import InternalError
from skerry.tasks import Model

PER_PAGE = 100
MAX_PAGES = 1000

Page = Callable[[dict[str, str]], Generator[Step, Any, Any]]
"""Requests one page; the query says which."""


def all_models(page: Page, filters: dict[str, str | None]) -> Generator[Step, Any, list[Model]]:
    """Yield every model that the filters leave. Raises a `SkerryError`."""
    query = {name: value for name, value in filters.items() if value is not None}
    models: list[Model] = []
    for number in range(1, MAX_PAGES + 1):
        listed = yield from page({**query, "page": str(number), "per_page": str(PER_PAGE)})
        if not isinstance(listed, list):
            raise InternalError("The platform's list of models is no list.")
        if not listed:
            return models
        models += map(Model, listed)
    raise InternalError(f"The platform's list of models has more than {MAX_PAGES} pages.")
