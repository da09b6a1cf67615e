"""What callers tell of a prompt's future reaches the region, and from there the engine."""

from __future__ import annotations

import pytest
from tests.edge.support import Deployment

from skerry_edge.hints import affinity_of


def test_a_session_is_the_tenants_own() -> None:
    asked = {"x-session-affinity": "ses_1"}
    assert len(affinity_of(asked, "t")) == 16
    assert affinity_of(asked, "t") == affinity_of(asked, "t")
    assert affinity_of(asked, "t") != affinity_of(asked, "u")
    assert affinity_of(asked, "t") != affinity_of({"x-session-affinity": "ses_2"}, "t")
    assert affinity_of({}, "t") == affinity_of({"x-session-affinity": ""}, "t") == b""


def test_hints_travel_with_the_request(edge: Deployment) -> None:
    headers = {"x-session-affinity": "any \u00e9 value".encode("latin-1"), "x-skerry-pin": b"60"}
    raw = [(name.encode(), value) for name, value in headers.items()]
    assert edge.client.post(edge.run_path, json={"prompt": "hi"}, headers=raw).status_code == 200
    assert edge.run(prompt="hi").status_code == 200
    hinted, plain = edge.region.submits
    assert (len(hinted.affinity), hinted.pins) == (16, ((len(hinted.prompt_ids), 60.0),))
    assert (plain.affinity, plain.pins) == (b"", ())


@pytest.mark.parametrize("value", ["", "soon", "-1", "1.5", "86401", "100000"])
def test_a_pin_out_of_range(edge: Deployment, value: str) -> None:
    response = edge.client.post(
        edge.run_path, json={"prompt": "hi"}, headers={"x-skerry-pin": value}
    )
    assert response.status_code == 400
    assert "x-skerry-pin" in response.text
