"""Edges of two homes, as on two machines, count one account of money on NATS servers."""

from __future__ import annotations

import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.command import MODEL, new_home
from tests.e2e.test_nats import Machine
from tests.regions.drivers.nats_server import NatsCluster

from skerry import AI
from skerry.errors import QuotaExceeded
from skerry_regions.models.catalog import Catalog
from skerry_regions.models.model_files import ModelFiles

pytestmark = pytest.mark.model

CAP = 0.000_02  # US$
LONGEST = 16  # tokens


def test_a_cap_holds_over_edges_of_two_homes(
    tmp_path: Path, default_model: ModelFiles, servers: NatsCluster
) -> None:
    key, registry = secrets.token_bytes(32), servers.url.partition("?")[0]
    homes = [tmp_path / name for name in ("a", "b")]
    one, other = (
        replace(new_home(home, default_model), state=servers.url) for home in homes
    )  # fmt: skip
    made = one("tokens", "create", "--account", "new", "--per-day", f"{CAP:.6f}")
    token = made.stdout.strip()
    account = re.search(r"of account ([0-9a-f]{32})", made.stderr)
    assert account is not None, made.stderr
    shutil.copy(one.home / "tokens.json", other.home / "tokens.json")
    node = Machine(
        one, registry, key,
        "node", "--id", "n-1", "--model", MODEL, "--runner", "toy", "--address", "tcp:127.0.0.1:0",
    )  # fmt: skip
    node.ready_at()
    edges = [
        Machine(each, registry, key, "edge", "--id", f"e-{i}", "--model", MODEL, "--port", "0")
        for i, each in enumerate((one, other))
    ]
    price, spent = Catalog.load().resolve(MODEL).price, 0.0

    def dollars(usage: dict[str, Any]) -> float:
        prompt, output = usage["prompt_tokens"], usage["completion_tokens"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        cost = (prompt - cached) * price.prompt + cached * price.cached + output * price.output
        return cost / 1e6

    clients = [
        AI(base_url=edge.ready_at(), account_id=account[1], api_token=token) for edge in edges
    ]
    refused = [0, 0]
    while min(refused) < 3:
        for i, ai in enumerate(clients):
            try:
                usage = ai.run(MODEL, {"prompt": "The sea is", "max_tokens": LONGEST})["usage"]
            except QuotaExceeded:
                refused[i] += 1
            else:
                refused[i] = 0
                spent += dollars(usage)
    most = (64 * price.prompt + LONGEST * price.output) / 1e6
    assert CAP - 2 * most < spent <= CAP
    for edge in edges:
        edge.stop()
    told = re.search(r"\[US\$ ([0-9.e-]+) of 2e-05 this day\]", other("tokens", "list").stdout)
    assert told is not None
    assert float(told[1]) == pytest.approx(spent, rel=1e-4)
    assert not (one.home / "spending.db").exists()
    for ai in clients:
        ai.close()
    node.stop()


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[NatsCluster]:
    cluster = NatsCluster(tmp_path / "nats", size=1)
    yield cluster
    cluster.stop()
