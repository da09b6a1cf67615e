"""`skerry stage`: what it refuses to do."""

from __future__ import annotations

from pathlib import Path

import pytest

from skerry_cli import main
from skerry_cli.roles import stage


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --listen: HOST:PORT of this machine"),
        (["--listen", "0.0.0.0:8795"], "give the one address to listen on, not a wildcard"),
        (["--listen", "192.0.2.1:8795"], "links between machines are encrypted, and this machine"),
        (["--listen", "192.0.2.1"], "'192.0.2.1' is not HOST:PORT"),
        (["--listen", "127.0.0.1:65536"], "'127.0.0.1:65536' is not HOST:PORT"),
        (["--listen", "127.0.0.1:1", "--ranks", "0"], "'0' is not a count"),
    ],
)
def test_where_stages_are_not_served(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SKERRY_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SKERRY_LINK_TLS", "off" if "wildcard" in message else "")
    for name in ("configure_threads", "configure_logging"):  # of the test's own process
        monkeypatch.setattr(stage, name, lambda *given: None)
    try:
        status = main(["stage", *arguments])
    except SystemExit as error:  # argparse's
        status = int(error.code or 0)
    assert status
    assert message in capsys.readouterr().err
