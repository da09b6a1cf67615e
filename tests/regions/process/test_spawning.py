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
    try:
        made = bound(host, 0)
    except OSError as error:
        pytest.skip(f"{host}: {error}")
    with made:
        listener, port = HeldListener(made), made.getsockname()[1]
        assert (listener.reached.host, listener.reached.port) == (near, port)
        assert (listener.address.host, listener.address.port) == (host, port)


def test_a_port_is_shared_by_who_says_so_and_refused_to_others() -> None:
    with bound("127.0.0.1", 0) as one:
        one.listen()
        port = one.getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            bound("127.0.0.1", port)
        with bound("127.0.0.1", port, is_shared=True) as other:
            assert one.getsockname() == other.getsockname()
