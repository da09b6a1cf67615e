"""Requests by way of a gateway."""

from __future__ import annotations

import httpx

IGNORED = "x-skerry-ignored"


def status(reply: httpx.Response) -> str | None:
    assert reply.status_code == 200, reply.text
    return reply.headers.get("cf-aig-cache-status")
