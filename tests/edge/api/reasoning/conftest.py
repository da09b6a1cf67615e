"""A model that thinks, and its clients."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import openai
import pytest
from tests.edge.api.reasoning.thoughts import base
from tests.edge.support import Deployment, deployed

from skerry_edge.limits import Limits


@pytest.fixture(scope="session")
def thinker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployed(tmp_path_factory.mktemp("edge"), Limits(), thinks=True) as deployment:
        yield deployment


@pytest.fixture(scope="session")
def openais(thinker: Deployment) -> Iterator[openai.OpenAI]:
    url = f"http://127.0.0.1:{thinker.port}{base(thinker)}"
    with openai.OpenAI(api_key=thinker.token, base_url=url, max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def anthropics(thinker: Deployment) -> Iterator[anthropic.Anthropic]:
    url = f"http://127.0.0.1:{thinker.port}"
    with anthropic.Anthropic(api_key=thinker.token, base_url=url, max_retries=0) as client:
        yield client
