"""A model whose nodes are all gone is not one that there never was."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from skerry.errors import ModelNotFound, Unavailable
from skerry_regions.region.known_models import MAX_KNOWN, KnownModels
from skerry_regions.region.recovery import RecoveryPolicy
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.wire.protocol import Embed, Sampling, Submit

pytestmark = pytest.mark.anyio


@dataclass
class Link:
    """What of a `NodeLink` is looked at here: this one never takes a stream."""

    models: frozenset[str]
    is_up: bool = True
    zone: str = "global"


class Nowhere:
    """A `Placer` without nodes."""

    def place(self, submit: Submit, earlier: Any) -> Any:
        return iter(())


def known(
    path: Path,
    *links: Link,
    offered: Iterable[str] = ("llm", "bge", "other"),
    told: tuple[str, ...] = (),
) -> KnownModels:
    return KnownModels(lambda: cast(Any, links), path, (*offered, *told), told)


async def seen(models: KnownModels, path: Path) -> None:
    async with models.watching(), asyncio.timeout(30):
        while not await asyncio.to_thread(path.exists):  # noqa: ASYNC110 - another thread writes it
            await asyncio.sleep(0.01)


def submit(model: str) -> Submit:
    sampling = Sampling(seed=1, max_tokens=1)
    return Submit(
        stream=1, request_id="r", model=model, prompt_ids=[1], sampling=sampling, tenant="t",
        cache_key=b"k" * 32,
    )  # fmt: skip


async def test_what_was_announced_is_kept_over_restarts(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    await seen(known(path, Link(frozenset({"llm"}), zone="eu"), Link(frozenset({"bge"}))), path)
    again = known(path, told=("told",))
    assert [again.knows(model, None) for model in ("llm", "bge", "told", "other")] == [
        True, True, True, False,
    ]  # fmt: skip
    assert [again.knows("llm", zone) for zone in ("eu", "us")] == [True, False]
    assert again.nodes() == {("llm", "up"): 0, ("bge", "up"): 0, ("told", "up"): 0}


async def test_the_file_is_bounded_and_a_damaged_one_is_as_none(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    many = frozenset(f"m{number}" for number in range(MAX_KNOWN + 10))
    models = known(path, Link(many), offered=many)
    await seen(models, path)
    assert sum(models.knows(each, None) for each in many) == MAX_KNOWN
    path.write_text("{")
    assert not known(path, offered=many).knows("m1", None)


async def test_a_model_whose_nodes_are_gone_is_waited_for_and_then_unavailable(
    tmp_path: Path,
) -> None:
    links = (Link(frozenset({"bge"})),)
    models = known(tmp_path / "known.json", *links, told=("llm", "bge2"))
    policy = RecoveryPolicy(start_patience=0.2, pause=0.01)
    region = RemoteRegion(lambda: cast(Any, links), cast(Any, Nowhere()), policy, models.knows)
    began = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable) as refused:
        await region.generate(submit("llm"))
    assert refused.value.retry_after
    with pytest.raises(Unavailable):
        await region.embed(
            Embed(
                stream=1, request_id="r", model="bge2", texts=[[1]], pooling="mean", normalize=True
            )
        )
    assert asyncio.get_running_loop().time() - began >= 0.4
    with pytest.raises(ModelNotFound):
        await region.generate(submit("never"))


async def test_what_is_offered_no_more_is_forgotten(tmp_path: Path) -> None:
    """Its deployment or its catalog entry is gone: it is unknown again, and nobody waits for it."""
    path = tmp_path / "known.json"
    link = Link(frozenset({"llm", "bge"}))
    await seen(known(path, link), path)
    models = known(path, link, offered=("bge",))
    assert [models.knows(model, None) for model in ("llm", "bge")] == [False, True]
    assert models.nodes() == {("bge", "up"): 1}, "no alert is about a model that was removed"
    region = RemoteRegion(
        lambda: cast(Any, (Link(frozenset({"bge"})),)), cast(Any, Nowhere()), knows=models.knows
    )
    with pytest.raises(ModelNotFound):
        await region.generate(submit("llm"))


async def test_forgotten_models_leave_room_for_those_that_are_offered(tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    former = frozenset(f"a{number}" for number in range(MAX_KNOWN))
    await seen(known(path, Link(former), offered=former), path)
    models = known(path, Link(frozenset({"llm"})))
    async with models.watching(), asyncio.timeout(30):
        while not known(path).knows("llm", None):  # noqa: ASYNC110 - another thread writes it
            await asyncio.sleep(0.01)
