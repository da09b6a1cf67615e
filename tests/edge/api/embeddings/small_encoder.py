"""A small vocabulary, and clients of an edge whose models embed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
from tests.core.random_encoders import CONFIG, KERNELS
from tests.edge.support import ACCOUNT
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from skerry_core.encoder.encoder import Encoder
from skerry_edge.api.app import create_app
from skerry_edge.gate.admission import Admission
from skerry_edge.gate.tokens import TokenStore
from skerry_edge.generation.edge import Edge
from skerry_edge.ledger.stores import Stores
from skerry_edge.limits import Limits
from skerry_edge.text.encoder import EncoderText
from skerry_regions.models.catalog import Catalog, ModelSpec
from skerry_regions.models.local_model import describe
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.node.node import Node
from skerry_regions.region.local import LocalRegion

MODEL = "@cf/test/encoder"
MAX_TOKENS = 12
DIMENSIONS: int = CONFIG["hidden_size"]
RUN = f"/client/v4/accounts/{ACCOUNT}/ai/run/{MODEL}"

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    *"abcdefghijklmnopqrstuvwxyz",
    "the",
    "cat",
    "sat",
    "[",
]
CLS, SEP, THE, CAT = 2, 3, WORDS.index("the"), WORDS.index("cat")


def write_tokenizer(folder: Path) -> None:
    """A tokenizer that states a length and padding, as published ones do."""
    tokenizer = Tokenizer(
        models.WordPiece({word: id_ for id_, word in enumerate(WORDS)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(WORDS[:4])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))


def spec_of(files: ModelFiles, **changes: Any) -> ModelSpec:
    spec = describe(files.weights, MODEL)
    return msgspec.structs.replace(spec, context_window=MAX_TOKENS, **changes)


@asynccontextmanager
async def client_of(
    folder: Path,
    files: ModelFiles,
    spec: ModelSpec,
    limits: Limits | None = None,
    stores: Stores | None = None,
) -> AsyncGenerator[httpx.AsyncClient]:
    node = Node(id="node", region="here", loop=asyncio.get_running_loop())
    node.serve_encoder(spec.id, Encoder.open(files.weights, threads=1, cache_dir=KERNELS))
    tokens = TokenStore(folder / "tokens.json")
    token, _ = tokens.create(account_id=ACCOUNT, scopes=("run", "read", "metrics"), now=0)
    edge = Edge(
        catalog=Catalog([spec]),
        texts={},
        encoders={spec.id: EncoderText(files, max_tokens=spec.context_window)},
        region=LocalRegion(node),
        tokens=tokens,
        secret=b"s" * 32,
        limits=limits or Limits(),
        admission=Admission(max_requests=(limits or Limits()).max_requests),
        stores=stores or Stores(),
    )
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(edge)),
        base_url="http://127.0.0.1",
        headers={"authorization": f"Bearer {token}"},
    ) as client:
        yield client
    await node.close()
