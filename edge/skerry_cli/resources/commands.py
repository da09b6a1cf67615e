"""`skerry get`, `apply`, `delete`, `history` and `rollback`, over the control API."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from skerry_cli.arguments import Commands, add_command, count
from skerry_cli.home.errors import CommandFailed, raised_as
from skerry_cli.home.platform_client import PlatformClient, PlatformError
from skerry_cli.home.state import Home
from skerry_cli.output import complain, note, say
from skerry_cli.resources.history import show_history
from skerry_cli.resources.kinds import KIND_HELP, KINDS, MARKS, Named, collection, named, word
from skerry_cli.tables import resource_table

SHOWN = ("regions", "pools", "edge_nodes", "deployments", "dns_zones", "routing")  # by `get` alone
NOTHING = {
    "api_tokens": "No token was made here but those of `skerry tokens list`.",
    "dns_zones": "There is no DNS zone: the control API and Terraform make them (docs/dns.md).",
    "dns_records": "There is no DNS record: the control API and Terraform make them (docs/dns.md).",
}
"""By collection, where a file writes none down."""
LONGEST = 120  # characters of a value, in what changes


def register(commands: Commands) -> None:
    """Add the commands."""
    get = add_command(
        commands,
        "get",
        asked(show),
        help="show what the control plane is to run",
        description="List resources of the control plane, all or of one kind, or show one. --yaml "
        f"prints what `skerry apply` takes. Kinds: {KIND_HELP}.",
        example="skerry get pool fra-decode\n  skerry get --yaml > platform.yaml",
    )
    get.add_argument("kind", nargs="?", type=collection, metavar="KIND")
    get.add_argument("id", nargs="?", metavar="ID")
    form = get.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--yaml", action="store_true", help="print a file that `apply` takes")
    change = add_command(
        commands,
        "apply",
        asked(apply),
        help="want what a file says",
        description="Create and change resources as a YAML file says: a topology's, with "
        "`deployments`, and with what pools of the control plane have beside (docs/control.md). "
        "All of it is done, or nothing. What the file does not name stays.",
        example="skerry apply -f platform.yaml --dry-run\n  skerry apply -f platform.yaml --prune",
    )
    _add_file(change, required=True)
    change.add_argument(
        "--prune", action="store_true", help="delete what earlier files named and this one does not"
    )
    _add_dry_run(change)
    delete = add_command(
        commands,
        "delete",
        asked(remove),
        help="want resources no longer: they drain, then they are gone",
        description="Delete resources: some of a kind, or those that a file names. All of it is "
        "done, or nothing. What runs of them drains.",
        example="skerry delete pool fra-decode\n  skerry delete -f platform.yaml --dry-run",
    )
    delete.add_argument("kind", nargs="?", type=collection, metavar="KIND", help=KIND_HELP)
    delete.add_argument("ids", nargs="*", metavar="ID")
    _add_file(delete, required=False)
    _add_dry_run(delete)
    past = add_command(
        commands,
        "history",
        asked(show_history),
        help="show who changed what",
        description="List what was changed, newest first: each line is a revision, to which "
        "`skerry rollback` goes back.",
        example="skerry history --limit 5\n  skerry history pool fra-decode",
    )
    past.add_argument("kind", nargs="?", type=collection, metavar="KIND", help=KIND_HELP)
    past.add_argument("id", nargs="?", metavar="ID")
    past.add_argument("--limit", type=count, default=20, metavar="N", help="default: %(default)s")
    past.add_argument("--json", action="store_true", help="print one JSON array")
    back = add_command(
        commands,
        "rollback",
        asked(roll_back),
        help="want again what was wanted before",
        description="Go back to what was wanted after a revision of `skerry history`; without one, "
        "undo the last. All of it is done, or nothing, and it is a revision itself, so that it can "
        "be undone. API tokens stay as they are.",
        example="skerry rollback --dry-run\n  skerry rollback 17",
    )
    back.add_argument("revision", nargs="?", type=revision, metavar="REVISION")
    _add_dry_run(back)


def revision(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no revision: `skerry history` lists them")
    return int(text)


def _add_file(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "-f", "--file", type=Path, required=required, metavar="FILE", help="YAML; - reads stdin"
    )


def _add_dry_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only say what would change")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


Command = Callable[[argparse.Namespace, PlatformClient], int]


def asked(command: Command) -> Callable[[argparse.Namespace], int]:
    """Return a command that is given the control plane to call."""

    def run(args: argparse.Namespace) -> int:
        home = Home.from_environ(os.environ)
        return command(args, PlatformClient.from_environ(home, os.environ))

    return run


def show(args: argparse.Namespace, client: PlatformClient) -> int:
    import msgspec

    if args.yaml:
        from skerry_cli.resources.manifests import manifest_text

        if args.kind is not None:
            return complain("--yaml prints all of it: leave out the kind")
        say(manifest_text(client))
        return 0
    if args.id is not None:
        found = client.ask("GET", f"/{args.kind}/{named(args.id)}")
        if args.json:
            say(msgspec.json.encode(found).decode())
        else:
            say(_as_yaml(found))
        return 0
    kinds = SHOWN if args.kind is None else (args.kind,)
    listed = {kind: client.all(f"/{kind}") for kind in kinds}
    if args.json:
        say(msgspec.json.encode(listed if args.kind is None else listed[args.kind]).decode())
        return 0
    tables = [resource_table(kind, each) for kind, each in listed.items() if each]
    if tables:
        say("\n\n".join(tables))
    else:
        note(
            NOTHING.get(
                args.kind or "", "Nothing is written down. `skerry apply -f FILE` does that."
            )
        )
    return 0


def apply(args: argparse.Namespace, client: PlatformClient) -> int:
    from skerry_cli.resources.manifests import read_manifest
    from skerry_regions.control.desired.manifest import ManifestError

    with raised_as(CommandFailed, ManifestError):
        document, values = read_manifest(args.file)
    body = {"manifest": values, "prune": args.prune, "dry_run": args.dry_run}
    try:
        return _report(client.ask("POST", "/apply", body), args)
    except PlatformError as error:
        if error.field is None or not error.field.startswith("manifest."):
            raise
        path = error.field.removeprefix("manifest.")
        return complain(str(document.error(path, str(error))))


def remove(args: argparse.Namespace, client: PlatformClient) -> int:
    from skerry_cli.resources.manifests import read_manifest, resources_of
    from skerry_regions.control.desired.manifest import ManifestError

    if (args.file is None) == (args.kind is None) or (args.kind is not None and not args.ids):
        return complain("name a kind and ids, or a file: `skerry delete pool fra-decode`")
    found = [Named(str(args.kind), id) for id in args.ids]
    if args.file is not None:
        with raised_as(CommandFailed, ManifestError):
            document, _ = read_manifest(args.file)
            found = resources_of(document)
    elif args.kind == "api_tokens":
        return _revoke(args, client)
    else:
        for each in found:  # a mistake in one is one in all
            client.ask("GET", f"/{each.collection}/{named(each.id)}")
    resources = [{"kind": KINDS[each.collection], "id": each.id} for each in found]
    body = {"resources": resources, "dry_run": args.dry_run}
    return _report(client.ask("POST", "/delete", body), args)


def _revoke(args: argparse.Namespace, client: PlatformClient) -> int:
    if args.dry_run or args.json:
        return complain("tokens are deleted one by one, without --dry-run and --json")
    for id in args.ids:
        client.ask("DELETE", f"/api_tokens/{named(id)}")
        say(f"- token {id}")
    return 0


def roll_back(args: argparse.Namespace, client: PlatformClient) -> int:
    body = {"revision": args.revision, "dry_run": args.dry_run}
    return _report(client.ask("POST", "/rollback", body), args)


def _report(applied: dict[str, Any], args: argparse.Namespace) -> int:
    import msgspec

    if args.json:
        say(msgspec.json.encode(applied).decode())
        return 0
    for change in applied["changes"]:
        say(f"{MARKS[change['action']]} {word(change['kind'])} {change['id']}")
        if change["action"] == "update":
            for field, (before, after) in change["changes"].items():
                say(f"    {field}: {_shown(before)} -> {_shown(after)}")
    if not applied["changes"]:
        note("Nothing changes: all of it is so already.")
    elif not applied["written"]:
        note("Nothing is changed: this was --dry-run.")
    else:
        note(f"This is revision {applied['revision']}. `skerry status` shows how far it is.")
    if applied["unnamed"]:
        unnamed = (each.split(" ", 1) for each in applied["unnamed"])
        names = ", ".join(f"{word(kind)} {id}" for kind, id in unnamed)
        note(f"Earlier files named {names}, too: --prune deletes that.")
    return 0


def _shown(value: Any) -> str:
    import msgspec

    text = msgspec.json.encode(value).decode()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _as_yaml(value: dict[str, Any]) -> str:
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=80)
    return text.rstrip()
