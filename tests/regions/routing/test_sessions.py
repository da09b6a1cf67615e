"""A session's requests go to one node, as long as that costs little and the node is well."""

from __future__ import annotations

from hashlib import blake2b

from tests.regions.routing.placements import demand, make, node, view

from skerry_regions.routing.placement import RouterConfig
from skerry_regions.routing.sessions import home_of
from skerry_regions.view import NodeLoad, NodeState

SESSIONS = [blake2b(bytes([i]), digest_size=16).digest() for i in range(200)]
NODES = [node(f"n{i}") for i in range(5)]


def homes(nodes: list[NodeState]) -> list[str | None]:
    return [home_of(session, nodes, "here") for session in SESSIONS]


def test_sessions_spread_evenly_and_whoever_asks_gets_the_same_node() -> None:
    found = homes(NODES)
    assert found == homes(NODES[::-1])
    assert all(20 <= found.count(each.id) <= 60 for each in NODES)
    assert home_of(b"", NODES, "here") is None
    assert home_of(SESSIONS[0], [], "here") is None


def test_when_a_node_goes_only_its_own_sessions_move() -> None:
    before, after = homes(NODES), homes(NODES[1:])
    assert all(a == b for a, b in zip(before, after, strict=True) if a != "n0")
    assert "n0" not in after


def test_a_session_lives_near_the_caller_on_a_node_that_computes_prompts() -> None:
    near, far = node("near", role="prefill"), node("far", role="prefill", region="there")
    decode = node("decode", role="decode")
    assert set(homes([near, far, decode])) == {"near"}
    assert set(homes([far, decode])) == {"decode"}
    assert set(homes([far])) == {"far"}
    assert set(homes([])) == {None}


def test_of_equal_nodes_it_is_the_sessions_own() -> None:
    for session in SESSIONS[:40]:
        asked = demand(affinity=session)
        best = make(seed=session[0]).best(view(*NODES), asked)
        assert best.decode == home_of(session, NODES, "here")
        assert best.terms["affinity"] == 0.0


def test_it_is_left_for_a_node_that_is_better_by_more_than_it_is_worth() -> None:
    worth = RouterConfig().affinity_seconds
    home = home_of(SESSIONS[0], NODES, "here")

    def best(queued_seconds: float) -> str:
        busy = NodeLoad(prefill_tokens=queued_seconds * 1000 - 10)  # and a step's 10 ms
        nodes = [node(each.id, load=busy) if each.id == home else each for each in NODES]
        return make().best(view(*nodes), demand(affinity=SESSIONS[0])).decode

    assert best(worth - 0.01) == home
    assert best(worth + 0.01) != home


def test_it_never_goes_before_health() -> None:
    home = home_of(SESSIONS[0], NODES, "here")
    asked = demand(affinity=SESSIONS[0])
    nodes = [node(each.id, draining=True) if each.id == home else each for each in NODES]
    assert make().best(view(*nodes), asked).decode != home
    excluded = demand(affinity=SESSIONS[0], exclude=frozenset({home or ""}))
    assert make().best(view(*NODES), excluded).decode != home


def test_among_many_nodes_it_is_always_looked_at() -> None:
    many = [node(f"n{i}") for i in range(100)]
    for session in SESSIONS[:20]:
        best = make(seed=session[0], sampled_nodes=2).best(view(*many), demand(affinity=session))
        assert best.decode == home_of(session, many, "here")
