"""Options of `skerry control` for machines that join: what goes together, and what they become."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from skerry_cli import build_parser
from skerry_cli.roles.control_machines import join_of
from skerry_cli.roles.control_pods import BadOptions
from skerry_regions.control.kubernetes import api_server
from skerry_regions.control.machines.webhook import IDLE_SECONDS

JOIN = ["--join-host", "10.0.0.5"]
PODS = ["--kubernetes", "https://10.0.0.1:6443", "--kubernetes-join", "https://10.0.0.5:8789"]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (PODS, "so give --join-host"),
        (["--machines-webhook", "https://a"], "so give --join-host"),
        ([*JOIN, *PODS[:2]], "give --kubernetes-join"),
        ([*JOIN, *PODS], "give --kubernetes-namespace"),
        ([*JOIN, *PODS[2:], "--kubernetes", "in-cluster"], "this is no pod"),
        ([*JOIN, "--machines-webhook", "https://a"], "belong together"),
        ([*JOIN, "--machines-webhook", "https://a", "--machines-webhook-secret-file", "/none"],
         "/none"),
    ],
)  # fmt: skip
def test_options_that_do_not_go_together(
    given: list[str], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BadOptions, match=told):
        join_of(build_parser().parse_args(["control", *given]))


def test_what_options_become(tmp_path: Path) -> None:
    assert join_of(build_parser().parse_args(["control"])) is None
    secret = tmp_path / "secret"
    secret.write_bytes(base64.b64encode(bytes(32)))
    given = [*JOIN, *PODS, "--kubernetes-namespace", "ai", "--machines-webhook", "https://a",
             "--machines-webhook-secret-file", str(secret)]  # fmt: skip
    options = join_of(build_parser().parse_args(["control", *given]))
    assert options is not None
    assert (options.host, options.port) == ("10.0.0.5", 8789)
    assert options.pods is not None
    access = options.pods.access
    assert (access.server, access.namespace) == ("https://10.0.0.1:6443", "ai")
    assert access.token_file == api_server.ACCOUNT / "token"
    assert options.webhook is not None
    assert options.webhook.idle_seconds == IDLE_SECONDS
    assert options.webhook.secret() == bytes(32)
