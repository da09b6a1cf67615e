"""The control plane's API as two accounts see it, with every role."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.regions.control.access.accounts import OTHER
from tests.regions.control.log.logs import Opener
from tests.regions.control.support import ACCOUNT, Api, caller

from skerry_regions.access import ROLES


@pytest.fixture
async def api(tmp_path: Path, opener: Opener) -> AsyncIterator[Api]:
    api = Api(tmp_path, opener)
    for role in ROLES:
        for account in (ACCOUNT, OTHER):
            id = f"{role}-{account[0]}"
            api.callers[id] = caller(id, role, account)
    yield api
    await api.close()
