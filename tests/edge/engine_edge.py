"""An edge in front of a real engine, with the default model's tokenizer and template.

The model is the toy's, and says what a test has it say: its words, then the end, whatever the
grammar and the limits make of that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import httpx
from tests.core.talker import Talker
from tests.edge.serving import serving

from skerry_core.config import EngineConfig
from skerry_core.engine.engine import Engine
from skerry_core.runner import ModelRunner
from skerry_edge.api.app import create_app
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.generation.edge import Edge
from skerry_edge.ledger.responses_store import ResponseStore
from skerry_edge.limits import Limits
from skerry_edge.text.model import TextModel
from skerry_regions.models.catalog import Catalog
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.node.grammar.grammars import grammars_of
from skerry_regions.node.node import Node
from skerry_regions.region.local import LocalRegion, LocalStream
from skerry_regions.wire.protocol import Embed, Submit

ACCOUNT = "0123456789abcdef0123456789abcdef"
DEFAULT = "@cf/huggingfacetb/smollm2-135m-instruct"
END = 2  # of a turn


class NodeRegion:
    """A node in this process, made on the loop of whoever asks first."""

    def __init__(self, files: ModelFiles, engine: Engine) -> None:
        self._files, self._engine = files, engine
        self._region: LocalRegion | None = None

    async def generate(self, submit: Submit) -> LocalStream:
        if self._region is None:
            node = Node(id="node-1", region="local", loop=asyncio.get_running_loop())
            node.serve(DEFAULT, self._engine, grammars_of(self._files, self._engine))
            self._region = LocalRegion(node)
        return await self._region.generate(submit)

    async def embed(self, embed: Embed) -> bytes:
        raise NotImplementedError

    def models(self) -> frozenset[str]:
        return frozenset({DEFAULT})

    async def close(self) -> None:
        if self._region is not None:
            await self._region.close()


class EngineEdge:
    """A running edge, the model behind it, and a client."""

    def __init__(self, client: httpx.Client, talker: Talker, text: TextModel) -> None:
        self.client, self.talker, self.text = client, talker, text

    def says(self, words: str) -> None:
        """Have the model say this."""
        self.talker.words = self.text.encode(words)


@contextmanager
def engine_edge(
    files: ModelFiles, folder: Path, runner: ModelRunner | None = None
) -> Generator[EngineEdge]:
    """Serve a model that says what it is told to, unless another `runner` speaks for itself."""
    spec = Catalog.load().resolve(DEFAULT)
    text = TextModel(files, context_window=spec.context_window)
    assert text.vocab_size is not None
    talker = Talker(num_blocks=512, vocab_size=text.vocab_size, max_context=spec.context_window)
    talker.turn, talker.end = text.encode("assistant\n"), END
    engine = Engine(runner or talker, EngineConfig(), model_key=b"talker")
    tokens = TokenStore(folder / "tokens.json")
    token, _ = tokens.create(account_id=ACCOUNT, role="developer", now=0)
    limits = Limits()
    edge = Edge(
        catalog=Catalog([spec]),
        texts={DEFAULT: text},
        region=NodeRegion(files, engine),
        tokens=tokens,
        secret=b"s" * 32,
        limits=limits,
        responses=ResponseStore(folder / "responses.db"),
    )
    headers = {"authorization": f"Bearer {token}"}
    with serving(create_app(edge), limits) as port:
        base = f"http://127.0.0.1:{port}"
        with httpx.Client(base_url=base, headers=headers, timeout=300, trust_env=False) as client:
            yield EngineEdge(client, talker, text)
