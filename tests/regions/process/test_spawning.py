"""Where processes listen that are started for others."""

from __future__ import annotations

import ipaddress

import pytest

from skerry_regions.process.spawning import HeldListener, bound, resolved


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "0.0.0.0", "::"])
def test_an_address_is_itself(host: str) -> None:
    assert resolved(host) == host


def test_a_name_is_the_address_that_it_has_here() -> None:
    assert ipaddress.ip_address(resolved("localhost")).is_loopback
    with pytest.raises(OSError, match="not known"):
        resolved("no-such-host.invalid")


@pytest.mark.parametrize(
    ("host", "near"), [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("::", "::1")]
)
def test_what_listens_everywhere_is_reached_on_loopback(host: str, near: str) -> None:
    listener = HeldListener(host, 8787)
    assert (listener.reached.host, listener.reached.port) == (near, 8787)
    assert listener.address.host == host, "and is bound there again"


def test_two_may_be_bound_to_one_port() -> None:
    with bound("127.0.0.1", 0) as one, bound("127.0.0.1", one.getsockname()[1]) as other:
        assert one.getsockname() == other.getsockname()
