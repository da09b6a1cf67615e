"""An edge with all that fields are of, and one with a model that thinks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.edge.scripted_region import answer
from tests.edge.support import Deployment, deployed

from skerry_edge.limits import Limits


@pytest.fixture(scope="session")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("edge"), Limits()) as deployment:
        deployment.region.script = lambda submit: answer("{}")
        yield deployment
