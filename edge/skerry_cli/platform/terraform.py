"""`skerry terraform install`: the Terraform provider where `terraform init` finds it."""

from __future__ import annotations

import argparse
from pathlib import Path

from skerry_cli.arguments import Commands, add_command
from skerry_cli.output import complain, note, say


def register(commands: Commands) -> None:
    """Add `skerry terraform install`."""
    parser = commands.add_parser("terraform", help="install the Terraform provider")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    add_command(
        actions,
        "install",
        install,
        help="put the provider where `terraform init` finds it",
        description="Put the provider into ~/.terraform.d, where plain `terraform init` finds it: "
        "without a registry and without a configuration file of Terraform's.",
        example="skerry terraform install",
    )


def install(args: argparse.Namespace) -> int:
    from skerry_terraform.install import SOURCE, CannotInstall, installed_plugin
    from skerry_terraform.install import install as put

    try:
        folder = put(Path.home(), installed_plugin())
    except CannotInstall as error:
        return complain(f"{error}.")
    note(f"Installed in {folder}.")
    say(f'source = "{SOURCE}"')
    return 0
