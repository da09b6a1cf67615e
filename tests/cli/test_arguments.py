"""Arguments from the command line: what is accepted, and how the rest is refused."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import pytest
from msgspec.structs import replace

from skerry import __version__
from skerry_cli import COMMANDS, build_parser
from skerry_cli.arguments import (
    byte_size,
    byte_size_or_none,
    count,
    port,
    positive_seconds,
    share,
)
from skerry_regions.control.planning.launcher import NodeSettings, fingerprint
from skerry_regions.control.reconcile.commands import SKERRY, node_command


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("750M", 750 << 20), ("2GiB", 2 << 30), ("1.5g", 3 << 29), ("64 kb", 64 << 10)],
)
def test_byte_sizes(text: str, size: int) -> None:
    assert byte_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "1e9", "2X", "nan", "inf", "9" * 13, "٣"])
def test_what_is_no_byte_size(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write for instance 750M"):
        byte_size(text)


def test_ports() -> None:
    assert [port("0"), port("65535")] == [0, 65535]
    for text in ("-1", "65536", "http", "", "٣"):
        with pytest.raises(argparse.ArgumentTypeError, match="0 to 65535"):
            port(text)


def test_counts() -> None:
    assert count("1") == 1
    for text in ("0", "-1", "1.5", "2147483648", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="whole number"):
            count(text)


def test_durations() -> None:
    assert positive_seconds("0.5") == 0.5
    for text in ("0", "-1", "nan", "inf", "soon"):
        with pytest.raises(argparse.ArgumentTypeError, match="duration in seconds"):
            positive_seconds(text)


def test_a_size_may_be_none() -> None:
    assert byte_size_or_none("none") == 0
    assert byte_size_or_none("4GiB") == 4 << 30
    with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
        byte_size_or_none("0")


def test_shares() -> None:
    assert [share("0"), share("0.25"), share("1")] == [0.0, 0.25, 1.0]
    for text in ("-0.1", "1.01", "nan", "25%", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="from 0 to 1"):
            share(text)


def test_what_a_pool_says_of_its_nodes_is_on_their_command_lines() -> None:
    plain = NodeSettings(region="fra", role="decode", model="m", runner="toy")
    told = replace(
        plain, kv_blocks=64, streams=200, step_tokens=8192, draft_tokens=0, file_tier="1GiB",
        pin_share=0.5, weights="int4", kv="fp8", tensor=2, pipeline=3,
    )  # fmt: skip
    assert fingerprint(told) != fingerprint(plain)

    def parsed(settings: NodeSettings) -> argparse.Namespace:
        command = node_command("n", settings, address=str, threads=1, prompts=None)
        return build_parser().parse_args(command[len(SKERRY) :])

    def said(settings: NodeSettings) -> tuple[object, ...]:
        a = parsed(settings)
        sizes = a.kv_blocks, a.streams, a.step_tokens, a.draft_tokens
        return *sizes, a.file_tier, a.pin_share, a.weights, a.kv, a.tensor, a.pipeline

    assert said(told) == (64, 200, 8192, 0, 1 << 30, 0.5, "int4", "fp8", 2, 3)
    assert said(plain) == (None,) * 10


def help_of(
    parser: argparse.ArgumentParser, command: str, capsys: pytest.CaptureFixture[str]
) -> str:
    with pytest.raises(SystemExit):
        parser.parse_args([command, "--help"])
    return capsys.readouterr().out


def test_a_module_is_listed_with_all_its_commands(capsys: pytest.CaptureFixture[str]) -> None:
    def help_of(parser: argparse.ArgumentParser, command: str) -> str:
        with pytest.raises(SystemExit):
            parser.parse_args([command, "--help"])
        return capsys.readouterr().out

    parser = build_parser()
    listed = [command for commands in COMMANDS.values() for command in commands]
    [action] = [each for each in parser._actions if each.choices is not None]
    assert list(action.choices or ()) == listed
    for command in listed:
        shown = help_of(build_parser(command), command)
        assert shown == help_of(parser, command)
        if command in ("up", "down", "status", "env", "run", "chat"):
            assert f"skerry {command}" in shown.partition("example:")[2]


def test_a_command_imports_its_own_module_alone() -> None:
    asked = "import sys, skerry_cli; skerry_cli.build_parser('status'); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", asked], env={"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    imported = set(done.stdout.split())
    assert "skerry_cli.observe.status" in imported
    assert not imported & {"httpx", "numpy", "numba", "skerry_cli.platform.up"}


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        build_parser().parse_args(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"skerry {__version__} (Python 3.")
