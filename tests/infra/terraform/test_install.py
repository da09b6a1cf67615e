"""`skerry terraform install`: the same bytes for every platform and person."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from tests.infra.terraform.command import terraform_binary

from skerry import __version__
from skerry_cli import main
from skerry_terraform.install import (
    COMMAND,
    PLATFORMS,
    SHIM,
    SOURCE,
    CannotInstall,
    install,
    installed_plugin,
)
from skerry_terraform.kit.server import COOKIE

PLUGIN = Path(sys.executable)  # any program will do
AS_PLUGIN = [sys.executable, "-m", "skerry_terraform"]  # as Terraform starts it


def test_the_mirror_is_what_terraform_looks_for(tmp_path: Path) -> None:
    older = tmp_path / ".terraform.d" / "plugins" / SOURCE / "0.0.1" / "kept"
    older.mkdir(parents=True)
    folder = install(tmp_path, PLUGIN)
    assert folder == older.parents[1] / __version__
    files = {path.relative_to(folder): path for path in folder.glob("*/*")}
    assert {str(name) for name in files} == {
        f"{platform}/{COMMAND}_v{__version__}" for platform in PLATFORMS
    }
    assert {path.read_text() for path in files.values()} == {SHIM}
    assert all(os.access(path, os.X_OK) for path in files.values())
    assert older.exists()
    link = tmp_path / ".terraform.d" / "skerry" / COMMAND
    assert link.readlink() == PLUGIN
    install(tmp_path, PLUGIN)  # again: an upgrade, or another virtual environment


def test_the_command_says_what_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["terraform", "install"]) == 0
    assert capsys.readouterr().out == f'source = "{SOURCE}"\n'
    assert (tmp_path / ".terraform.d" / "skerry" / COMMAND).readlink() == installed_plugin()
    monkeypatch.setattr(sys, "platform", "win32")
    assert main(["terraform", "install"]) == 1
    assert "Windows" in capsys.readouterr().err


def test_the_plugin_of_a_user_installation_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get_path(name: str, scheme: str = "system") -> str:
        return str(tmp_path / scheme / name)

    monkeypatch.setattr(sysconfig, "get_path", get_path)
    assert installed_plugin() == tmp_path / "system" / "scripts" / COMMAND
    plugin = Path(get_path("scripts", sysconfig.get_preferred_scheme("user"))) / COMMAND
    plugin.mkdir(parents=True)
    assert installed_plugin() == plugin


def test_what_cannot_be_installed_is_told(tmp_path: Path) -> None:
    with pytest.raises(CannotInstall, match=r"pip install '\.\[terraform\]'"):
        install(tmp_path, tmp_path / "none")
    (tmp_path / ".terraform.d").write_text("in the way")
    with pytest.raises(CannotInstall, match="cannot write"):
        install(tmp_path, PLUGIN)


@pytest.mark.parametrize(
    ("environ", "told"),
    [
        ({}, "Terraform starts it by itself"),
        ({"TF_PLUGIN_MAGIC_COOKIE": COOKIE, "PLUGIN_PROTOCOL_VERSIONS": "5"}, "protocol 6"),
    ],
)
def test_the_plugin_is_not_for_people(environ: dict[str, str], told: str) -> None:
    done = plugin(environ)
    assert (done.returncode, told in done.stdout + done.stderr) == (1, True), done


def test_a_plugin_that_was_installed_by_half_says_what_to_do(tmp_path: Path) -> None:
    done = plugin(half_installed(tmp_path))
    told = "pip install '.[terraform]'"  # on stdout, where Terraform looks
    assert (done.returncode, told in done.stdout) == (1, True), done


@pytest.mark.parametrize("part", ["script", "plugin"])
def test_what_cannot_run_stays_until_its_words_are_read(tmp_path: Path, part: str) -> None:
    """Terraform may lose those of a process that has ended."""
    if part == "script":
        [script] = (install(tmp_path, PLUGIN) / PLATFORMS[0]).iterdir()
        (tmp_path / ".terraform.d" / "skerry" / COMMAND).unlink()
        command, environ = [str(script)], os.environ | {"HOME": str(tmp_path)}
        told = "skerry terraform install"
    else:
        command, environ = AS_PLUGIN, half_installed(tmp_path)
        told = "pip install"
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert told in process.stdout.readline().decode()
        assert process.poll() is None
        process.kill()


def test_missing_terraform_is_no_reason_to_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERRAFORM", "no-such-terraform")
    with pytest.raises(pytest.fail.Exception, match=r"Put it into PATH"):
        terraform_binary()


def half_installed(folder: Path) -> dict[str, str]:
    """Return the variables of a Python that finds no grpc; `folder` goes before all others."""
    (folder / "grpc.py").write_text("raise ModuleNotFoundError('none', name='grpc')\n")
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path])}


def plugin(environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run it with these variables too, as Terraform would."""
    paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        AS_PLUGIN, env=os.environ | paths | environ,
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
