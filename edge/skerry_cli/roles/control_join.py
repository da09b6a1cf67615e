"""`skerry control token` and `skerry control machine`: who may join, and who has."""

from __future__ import annotations

import argparse
import os
import re
from typing import Any

from skerry_cli.arguments import Commands, add_command, count
from skerry_cli.home.platform_client import PlatformClient, PlatformError
from skerry_cli.home.state import Home
from skerry_cli.output import note, say

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
ROLES = ("prefill", "decode", "hybrid", "edge", "host")


def register(actions: Commands) -> None:
    """Add `token create|list|delete` and `machine list|revoke`."""
    token = actions.add_parser("token", help="create, list and delete join tokens")
    tokens = token.add_subparsers(metavar="ACTION", required=True)
    create = add_command(
        tokens,
        "create",
        create_token,
        help="let a machine join; the token is shown once",
        description="Make a token with which machines join: `skerry node --join URL --token T`. "
        "Only its hash is stored, so it is shown this once.",
        example="skerry control token create --pool fra-decode --uses 4 --expires 2h",
    )
    place = create.add_mutually_exclusive_group(required=True)
    place.add_argument(
        "--pool",
        metavar="ID",
        help="nodes of this pool, such as fra-decode, and hosts for it alone",
    )
    place.add_argument("--region", metavar="NAME", help="nodes, edges and hosts of this region")
    create.add_argument(
        "--role",
        action="append",
        choices=ROLES,
        help="with --region: what may join; may be repeated (default: everything)",
    )
    create.add_argument(
        "--uses", type=count, default=1, metavar="N", help="machines (default: %(default)s)"
    )
    create.add_argument(
        "--expires",
        type=duration,
        default=3600.0,
        metavar="TIME",
        help="such as 90s, 30m, 12h or 7d, at most 30d (default: 1h)",
    )
    create.add_argument("--name", default="", help="what the token is for")
    add_command(
        tokens,
        "list",
        list_tokens,
        help="list join tokens, without their secrets",
        description="List join tokens. They are forgotten a day after they expire.",
        example="skerry control token list",
    )
    delete = add_command(
        tokens,
        "delete",
        delete_token,
        help="let no machine join by a token any more",
        description="Delete a join token. Machines that joined with it stay.",
        example="skerry control token delete 0123456789abcdef",
    )
    delete.add_argument("id", help="the token's id, or the token itself")
    machine = actions.add_parser("machine", help="list machines that joined, and shut them out")
    machines = machine.add_subparsers(metavar="ACTION", required=True)
    add_command(
        machines,
        "list",
        list_machines,
        help="list machines that joined",
        description="List the machines that joined, those that were revoked too; of hosts also "
        "what their nodes take of what they offer.",
        example="skerry control machine list",
    )
    revoke = add_command(
        machines,
        "revoke",
        revoke_machine,
        help="shut a machine out",
        description="Revoke a machine: its certificate is refused from now on, and edges let go "
        "of it at once. Its streams go on elsewhere.",
        example="skerry control machine revoke fra-decode-1a2b3c4d",
    )
    revoke.add_argument("id")


def create_token(args: argparse.Namespace) -> int:
    values: dict[str, Any] = {
        "name": args.name, "max_uses": args.uses, "expires_in_seconds": args.expires,
    }  # fmt: skip
    if args.pool is not None:
        values["pool"] = args.pool
    else:
        values |= {"region": args.region, "roles": args.role or []}
    made = _client().ask("POST", "/join_tokens", values)
    note(
        f"Join token {made['id']}, for {made['max_uses']} machines until {made['expires_at']}; "
        "it is not shown again:"
    )
    say(made["secret"])
    return 0


def list_tokens(args: argparse.Namespace) -> int:
    tokens = _client().all("/join_tokens")
    say(f"{'ID':16}  {'FOR':24}  {'USES':11}  {'EXPIRES':24}  NAME")
    for each in tokens:
        place = each["pool"] or "/".join([each["region"], ",".join(each["roles"]) or "all"])
        uses = f"{each['uses']} of {each['max_uses']}"
        line = f"{each['id']}  {place:24}  {uses:11}  {each['expires_at']:24}  {each['name']}"
        say(line.rstrip())
    return 0


def delete_token(args: argparse.Namespace) -> int:
    id = args.id.split("_")[1] if args.id.startswith("skjoin_") else args.id
    _client().ask("DELETE", f"/join_tokens/{_checked(id)}")
    say(f"Join token {id} is deleted.")
    return 0


def list_machines(args: argparse.Namespace) -> int:
    machines = _client().all("/machines")
    say(
        f"{'ID':32}  {'KIND':4}  {'HOST':20}  {'SKERRY':8}  {'JOINED':24}  {'CPUS':9}  "
        f"{'GIB':13}  {'GPUS':5}  {'NODES':5}  STATE"
    )
    for each in machines:
        state = f"revoked {each['revoked_at']}" if each["revoked_at"] else "joined"
        cpus, memory, gpus, nodes = _used(each)
        say(
            f"{each['id']:32}  {each['kind']:4}  {each['hostname']:20}  {each['version']:8}  "
            f"{each['joined_at']:24}  {cpus:9}  {memory:13}  {gpus:5}  {nodes:5}  {state}"
        )
    return 0


def _used(machine: dict[str, Any]) -> tuple[str, str, str, str]:
    """Return CPUs, GiB and GPUs of a host that reports, as taken of offered, and its nodes."""
    offers, used = machine.get("offers"), machine.get("used")
    if offers is None or used is None:
        return "-", "-", "-", "-"
    gib = [f"{each['memory'] / (1 << 30):.1f}" for each in (used, offers)]
    of = [f"{used[name]}/{offers[name]}" for name in ("cpus", "gpus")]
    return of[0], "/".join(gib), of[1], str(machine["num_nodes"])


def revoke_machine(args: argparse.Namespace) -> int:
    revoked = _client().ask("DELETE", f"/machines/{_checked(args.id)}")
    say(f"Machine {args.id} is revoked.")
    token = revoked["join_token"]
    if any(each["id"] == token and each["is_usable"] for each in _client().all("/join_tokens")):
        note(
            f"With the join token {token} it can join again: `skerry control token delete "
            f"{token}`, unless others need it."
        )
    return 0


def duration(text: str) -> float:
    """Return seconds of `90s`, `30m`, `12h`, `7d`."""
    match = re.fullmatch(r"([0-9]{1,7})([smhd])", text)
    if match is None or not int(match[1]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a time: such as 90s, 30m, 12h or 7d")
    return float(int(match[1]) * UNITS[match[2]])


def _checked(id: str) -> str:
    """Return the id, which may be part of a path. Raises PlatformError."""
    if re.fullmatch(r"[A-Za-z0-9-]{1,256}", id) is None:
        raise PlatformError(f"{id!r} is no id")
    return id


def _client() -> PlatformClient:
    """Return a client of this home's control plane. Raises PlatformError."""
    return PlatformClient.of_home(Home.from_environ(os.environ))
