"""Browsers: no page may call, unless its origin was named."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.edge.support import Deployment, deployed

from skerry_edge.api.cors import origins_from
from skerry_edge.gate.allowance_use import RATE_HEADERS
from skerry_edge.limits import Limits

PAGE = "https://app.example.com"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


def test_no_page_may_call_by_default(edge: Deployment) -> None:
    assert edge.client.options(edge.chat_path, headers=PREFLIGHT).status_code == 405
    reply = edge.client.get("/healthz", headers={"origin": PAGE})
    assert not [name for name in reply.headers if name.startswith("access-control")]


def test_named_pages_may_call(tmp_path: Path) -> None:
    with deployed(tmp_path, Limits(), cors_origins=(PAGE,)) as edge:
        permission = edge.client.options(edge.chat_path, headers=PREFLIGHT)
        assert permission.status_code == 200
        assert permission.headers["access-control-allow-origin"] == PAGE
        assert "x-stainless-os" in permission.headers["access-control-allow-headers"]
        for body in (b'{"model": ""}', b"{"):  # errors too: a page must be able to read them
            reply = edge.client.post(edge.chat_path, content=body, headers={"origin": PAGE})
            assert reply.status_code == 400
            assert reply.headers["access-control-allow-origin"] == PAGE
            exposed = reply.headers["access-control-expose-headers"].split(", ")
            assert {"x-request-id", "x-skerry-explain", *RATE_HEADERS} <= {*exposed}
        other = edge.client.options(
            edge.chat_path, headers={**PREFLIGHT, "origin": "https://evil.example"}
        )
        assert other.status_code == 400
        assert "access-control-allow-origin" not in other.headers


def test_origins_from_the_environment() -> None:
    assert origins_from({}) == ()
    assert origins_from({"SKERRY_CORS_ORIGINS": " "}) == ()
    both = {"SKERRY_CORS_ORIGINS": f"{PAGE}, http://localhost:3000"}
    assert origins_from(both) == (PAGE, "http://localhost:3000")
    assert origins_from({"SKERRY_CORS_ORIGINS": "*"}) == ("*",)
    for wrong in ("app.example.com", f"{PAGE}/", "https://", "https://a b", "null"):
        with pytest.raises(ValueError, match="is not an origin"):
            origins_from({"SKERRY_CORS_ORIGINS": wrong})
