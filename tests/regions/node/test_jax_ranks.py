"""Ranks of JAX: in processes of their own, as a node starts them, or devices of one."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.core.runners.runner_suite import ROOT, write_model

from skerry_core.config import ConfigError
from skerry_core.runners.jax.jax_process import devices_here
from skerry_regions.node.ranks.order import check_own_name


def test_devices_are_counted_before_jax_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("XLA_FLAGS", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    assert devices_here() >= 1
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    assert devices_here() == 2
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4 --xla_other=1")
    assert devices_here() == 4


@pytest.mark.parametrize(
    ("addresses", "refused"),
    [
        (["127.0.0.1", "::1"], None),
        (["127.0.1.1"], None),
        (["127.0.0.1", "10.1.2.3"], "this machine's name, box, is 10.1.2.3"),
    ],
)
def test_ranks_listen_on_the_loopback_interface_alone(
    monkeypatch: pytest.MonkeyPatch, addresses: list[str], refused: str | None
) -> None:
    found = [(0, 0, 0, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, port: found)
    monkeypatch.setattr(socket, "gethostname", lambda: "box")
    if refused is None:
        check_own_name()
    else:
        with pytest.raises(ConfigError, match=refused):
            check_own_name()


@pytest.mark.slow  # two processes start JAX and compile: 12 s of one core
def test_two_processes_give_what_one_does(subprocess_env: dict[str, str], tmp_path: Path) -> None:
    """Logits, an engine's tokens, KV out and in; a process that dies fails the step at once."""
    try:
        check_own_name()
    except ConfigError as error:
        pytest.skip(f"{error}")
    path = write_model(tmp_path, "llama")
    command = [sys.executable, "-m", "tests.regions.node.jax_ranks", str(path)]
    subprocess.run(command, env=subprocess_env, cwd=ROOT, check=True, timeout=300)
