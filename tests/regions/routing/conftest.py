"""A router over nodes by hand."""

from __future__ import annotations

import pytest
from tests.regions.routing.placements import Setup, make


@pytest.fixture
def setup() -> Setup:
    return make()
