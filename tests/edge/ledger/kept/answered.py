"""Requests to an edge that keeps answers, and what it counted of them."""

from __future__ import annotations

from typing import Any

import httpx
from tests.edge.ledger.journal_rows import flush
from tests.edge.support import Deployment

from skerry_edge.ledger.usage_report import Totals, journals, totals

CACHED = {"cf-aig-cache-ttl": "600"}

GREEDY: dict[str, Any] = {"temperature": 0}


def post(edge: Deployment, path: str, headers: dict[str, str], **body: Any) -> httpx.Response:
    return edge.client.post(path, json=body, headers=headers)


def run(edge: Deployment, headers: dict[str, str], **body: Any) -> httpx.Response:
    return post(edge, edge.run_path, headers, **{"prompt": "hi", **GREEDY, **body})


def text(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    said: str = response.json()["result"]["response"]
    return said


def total(edge: Deployment) -> Totals:
    journal = edge.edge.stores.journal
    assert journal is not None
    assert flush(journal)
    with journals([journal.path]) as database:
        (all_of_it,) = totals(database)
    return all_of_it
