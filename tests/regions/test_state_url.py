"""Where a platform keeps what its machines share, as it is written down."""

from __future__ import annotations

import pytest

from skerry_regions.state_url import StateURL


def test_files_of_the_home() -> None:
    assert StateURL.parse("sqlite") is None


def test_servers() -> None:
    assert StateURL.parse("nats://skerry:p%40ss@10.0.0.2:4222,b,[::1]:4333?system=sys:a%26b") == (
        StateURL(
            servers=("nats://10.0.0.2:4222", "nats://b:4222", "nats://[::1]:4333"),
            user="skerry", password="p@ss", system=("sys", "a&b"),
        )
    )  # fmt: skip
    relaxed = StateURL.parse("tls://token@nats.example?replicas=1&durability=relaxed")
    assert relaxed == StateURL(
        servers=("tls://nats.example:4222",), token="token", replicas=1, is_relaxed=True
    )


def test_secrets_are_not_written_anywhere() -> None:
    url = StateURL.parse("nats://skerry:secret@a?system=sys:hidden")
    assert f"{url}" == "nats://a:4222"
    assert "secret" not in repr(url)
    assert "hidden" not in repr(url)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("redis://a", "state is `sqlite`, or nats://"),
        ("nats://", "'' is no HOST"),
        ("nats://a:0", "'a:0' is no HOST"),
        ("nats://a b", "'a b' is no HOST"),
        ("nats://u:secret@a,,b", "'' is no HOST"),
        ("nats://a?replicas=2", "replicas is one of 1, 3, 5, not '2'"),
        ("nats://a?durability=none", "durability is synced or relaxed, not 'none'"),
        ("nats://a?system=sys", "system is USER:PASSWORD"),
        ("tls://a?certificates=here", "certificates are system or /a/folder, not 'here'"),
        ("nats://a?certificates=system", "certificates are those of tls://"),
        ("nats://a?sync=no", "there is no option 'sync'"),
        ("nats://" + "a," * 3000, "state is `sqlite`"),
    ],
)
def test_what_is_none(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        StateURL.parse(text)
    assert "secret" not in str(error.value)


def test_certificates() -> None:
    url = StateURL.parse("tls://a?certificates=/etc/skerry/nats")
    assert url is not None
    assert url.is_encrypted
    assert url.certificates == "/etc/skerry/nats"
    system = StateURL.parse("tls://a?certificates=system", options=("certificates",))
    assert system is not None
    assert system.certificates == "system"
    plain = StateURL.parse("nats://a")
    assert plain is not None
    assert not plain.is_encrypted
