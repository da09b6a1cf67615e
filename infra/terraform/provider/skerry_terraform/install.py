"""Puts the provider where plain `terraform init` finds it: Terraform's implied local mirror.

What Terraform installs is a shell script of constant bytes, the same for every platform, so one
lock file holds for a whole team. It runs what a link beside the mirror points to: the plugin that
pip installed. The bytes of a version must never change.

Where there is none, the script goes on until its words are read, for Terraform may lose those of a
process that has ended.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from skerry import __version__

SOURCE = "registry.skerry.dev/platform/skerry"
COMMAND = "terraform-provider-skerry"
PLATFORMS = ("darwin_amd64", "darwin_arm64", "linux_amd64", "linux_arm64")
SHIM = """\
#!/bin/sh
p="${SKERRY_PROVIDER:-$HOME/.terraform.d/skerry/terraform-provider-skerry}"
[ -x "$p" ] || { echo "the skerry provider is not installed here; run: pip install 'skerry[terraform]' && skerry terraform install"; exec sleep 2; }
exec "$p" "$@"
"""  # noqa: E501 (one message)


class CannotInstall(Exception):
    """The message says why."""


def install(home: Path, plugin: Path) -> Path:
    """Write the mirror below `home`; returns its folder of this version. Older ones stay.

    `plugin` is the console script. Raises CannotInstall.
    """
    if sys.platform == "win32":
        raise CannotInstall("Windows wants another kind of plugin, which there is not yet")
    if not os.access(plugin, os.X_OK):
        raise CannotInstall(
            f"there is no {plugin}: `pip install '.[terraform]'` in Skerry's repository puts it "
            "there"
        )
    version = home / ".terraform.d" / "plugins" / SOURCE / __version__
    try:
        for platform in PLATFORMS:
            _write(version / platform / f"{COMMAND}_v{__version__}")
        _link(home / ".terraform.d" / "skerry" / COMMAND, plugin)
    except OSError as error:
        raise CannotInstall(f"cannot write {error.filename}: {error.strerror}") from None
    return version


def installed_plugin() -> Path:
    """Return where pip puts the console scripts of this Python; or did, with `pip
    install --user`."""
    user = sysconfig.get_path("scripts", sysconfig.get_preferred_scheme("user"))
    plugins = [Path(folder) / COMMAND for folder in (sysconfig.get_path("scripts"), user)]
    return next((plugin for plugin in plugins if plugin.exists()), plugins[0])


def _write(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(SHIM)
    draft.chmod(0o755)
    draft.replace(path)


def _link(path: Path, target: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.symlink_to(target)
    draft.replace(path)
