"""The control plane's API, over a store of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.regions.control.log.logs import Opener
from tests.regions.control.support import Api


@pytest.fixture
async def api(tmp_path: Path, opener: Opener) -> AsyncIterator[Api]:
    api = Api(tmp_path, opener)
    yield api
    await api.close()
