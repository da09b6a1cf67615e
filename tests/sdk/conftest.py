"""A small platform over real HTTP that replays recorded shapes; see `platform.py`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.sdk.platform import Platform


@pytest.fixture(scope="session")
def served() -> Iterator[Platform]:
    with Platform.serve() as platform:
        yield platform


@pytest.fixture
def platform(served: Platform) -> Platform:
    served.forget()
    return served
