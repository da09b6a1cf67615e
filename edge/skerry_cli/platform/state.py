"""`skerry state`: copies what a home keeps to NATS servers, and back."""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from skerry_cli.arguments import Commands, add_command
from skerry_cli.home.errors import CannotStart
from skerry_cli.home.shared_state import StateMark, connected_state, read_mark, using_state
from skerry_cli.home.state import Home, write_record
from skerry_cli.output import complain, note, say
from skerry_edge.gate.token_file import TokenRecords, TokenStoreError
from skerry_regions.state_url import SQLITE, StateURL

if TYPE_CHECKING:
    from skerry_cli.platform.state_tables import CopiedState
    from skerry_edge.shared.copies.tables import CopiedTable
    from skerry_regions.drivers.jetstream.connection import JetStream

NOTED_SECONDS = 1.0  # between two lines of progress
REACH_SECONDS, LOOK_SECONDS = 30.0, 0.1  # that servers are waited for, and between two looks
NAME = "skerry state copy"


def register(commands: Commands) -> None:
    """Add `skerry state copy`."""
    parser = commands.add_parser("state", help="copy what a home keeps to NATS servers, and back")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    copy = add_command(
        actions,
        "copy",
        copy_state,
        help="copy tokens, spent money, usage, responses, files and batches",
        description="Copy what this home keeps to NATS servers, which edges of many machines "
        "share, or back from there: API tokens, spent money, usage, responses, idempotency keys, "
        "files and batches; limits, catalog and the key root go with them. Nothing may run on what "
        "is left: edges of this home on the way there, all edges on the way back. A copy that was "
        "cut off goes on when it is begun once more. What was left is sealed: an edge that starts "
        "there says where the state is.",
        example="skerry state copy --from sqlite --to 'nats://skerry:secret@10.0.0.2:4222?"
        "system=sys:secret' --dry-run\n"
        "  skerry state copy --from sqlite --to 'nats://skerry:secret@10.0.0.2:4222?"
        "system=sys:secret'\n"
        "  skerry state copy --to sqlite --from 'nats://skerry:secret@10.0.0.2:4222?"
        "system=sys:secret'",
    )
    for option, meaning in (("--from", "where it is"), ("--to", "where it is to be")):
        copy.add_argument(
            option,
            dest=f"{option[2:]}_",
            type=_place,
            required=True,
            metavar="PLACE",
            help=f"{meaning}: sqlite, of this home, or nats://… or tls://…, as `state` says it",
        )
    copy.add_argument("--dry-run", action="store_true", help="only show how much is at both places")


def copy_state(args: argparse.Namespace) -> int:
    """Run `skerry state copy`."""
    texts = [text for text in (args.from_, args.to_) if text != SQLITE]
    if len(texts) != 1:
        return complain("one of --from and --to is sqlite, the other nats://… or tls://….")
    home = Home.from_environ(os.environ)
    home.create()
    try:
        return asyncio.run(
            _copy(home, *texts, is_leaving=args.from_ == SQLITE, is_dry=args.dry_run)
        )
    except (CannotStart, TokenStoreError) as error:
        return complain(f"{error}.")


async def _copy(home: Home, text: str, *, is_leaving: bool, is_dry: bool) -> int:
    from skerry_cli.platform.state_tables import CopiedState, zones_of, zones_on
    from skerry_regions.drivers.jetstream.stream import until_known

    url = StateURL.parse(text)
    assert url is not None
    if is_dry:
        async with connected_state(home, os.environ, url, NAME, []) as state:
            await _reached(state)
            known = await until_known(lambda: zones_on(state), REACH_SECONDS)
            both = dict.fromkeys([*zones_of(home), *known])
            counts = await CopiedState(home, state, [*both]).counts()
        say(f"{'TABLE':24}  {'HOME':>10}  {'SERVERS':>10}")
        for name, here, there in counts:
            say(f"{name:24}  {here:10,}  {there:10,}")
        return 0
    with using_state(home, alone=True):
        async with connected_state(home, os.environ, url, NAME, zones_of(home)) as state:
            await _reached(state)
            zones = zones_of(home) if is_leaving else await zones_on(state)
            tables = CopiedState(home, state, zones)
            if is_leaving:
                return await _leave(home, tables, url, text)
            return await _return(home, tables, url, text)


async def _reached(state: JetStream) -> None:
    """Wait until servers can be used: a cluster that was just started elects first. Raises
    `CannotStart`."""
    give_up = time.monotonic() + REACH_SECONDS
    while problem := state.problem:
        if time.monotonic() > give_up:
            raise CannotStart(f"the servers cannot be used: {problem}")
        await asyncio.sleep(LOOK_SECONDS)


async def _leave(home: Home, tables: CopiedState, url: StateURL, text: str) -> int:
    """Copy a home's state to servers. Raises `CannotStart`."""
    from skerry_edge.money.seal import sealed_by, unseal
    from skerry_edge.shared.copies.usage_copy import send_all_again

    mark = read_mark(home) or StateMark(home=secrets.token_hex(8), phase="here")
    if mark.phase == "left":
        raise CannotStart(f"the state of this home was copied to {mark.servers} already")
    if mark.phase == "returning" or (mark.phase == "leaving" and mark.servers != str(url)):
        raise CannotStart(f"a copy {_way(mark)} was begun: finish that one first")
    holder = await sealed_by(tables.money)
    if holder not in ("", mark.home):
        raise CannotStart(
            f"the state of these servers was copied back into another home ({holder}): copy from "
            "that one"
        )
    if mark.phase == "here":
        if holder:
            await tables.empty_servers()
        for journal in tables.journals():
            send_all_again(journal)
        mark = replace(mark, phase="leaving", servers=str(url))
        write_record(home.state_mark, mark)
    shared = await tables.share_settings(text, is_leaving=True)
    copied = await tables.copy(
        is_leaving=True, life=f"home-{mark.home}", replaces=bool(holder), progress=Progress()
    )
    if not _shown([shared, *copied]):
        return 1
    await unseal(tables.money)
    write_record(home.state_mark, replace(mark, phase="left"))
    note(f"All is at {url}. Have that URL as `state` of the topology, or in SKERRY_STATE: edges "
         "of this home start with it only.")  # fmt: skip
    return 0


async def _return(home: Home, tables: CopiedState, url: StateURL, text: str) -> int:
    """Copy servers' state into a home. Raises `CannotStart`."""
    from skerry_edge.money.seal import seal, sealed_by, unseal

    mark = read_mark(home) or StateMark(home=secrets.token_hex(8), phase="here")
    if mark.phase == "leaving" or (mark.phase != "here" and mark.servers != str(url)):
        raise CannotStart(f"a copy {_way(mark)} was begun: finish that one first")
    if mark.phase == "here" and tables.home_has_records():
        raise CannotStart(
            "this home has a state of its own, which would be mixed with the servers': take "
            "another SKERRY_HOME, or the one whose state was copied there"
        )
    holder = await sealed_by(tables.money)
    if holder not in ("", mark.home):
        raise CannotStart(
            f"the state of these servers was copied back into another home ({holder})"
        )
    if mark.phase != "returning":
        write_record(home.state_mark, mark)  # by its name the servers are sealed
        await seal(tables.money, mark.home)
        if edges := await tables.money.num_followers():
            if not holder:
                await unseal(tables.money)
            raise CannotStart(f"edges use these servers: end them first ({edges} of them)")
        tables.empty_home()
        mark = replace(mark, phase="returning", servers=str(url))
        write_record(home.state_mark, mark)
    shared = await tables.share_settings(text, is_leaving=False)
    copied = await tables.copy(is_leaving=False, life="", replaces=False, progress=Progress())
    if not _shown([shared, *copied]):
        return 1
    TokenRecords(home.tokens).keep()
    write_record(home.state_mark, replace(mark, phase="here"))
    note("All is in this home. Have `state: sqlite` in the topology, and no SKERRY_STATE: edges "
         "that start with the servers are refused.")  # fmt: skip
    return 0


class Progress:
    """Notes how far a table has come, once a second."""

    def __init__(self) -> None:
        self._noted_at = time.monotonic()

    def __call__(self, table: str, number: int, total: int) -> None:
        if (now := time.monotonic()) - self._noted_at >= NOTED_SECONDS:
            self._noted_at = now
            note(f"{table}: {number:,} of {total:,}")


def _shown(copied: Sequence[CopiedTable]) -> bool:
    """Print the counts; return whether all is at the destination."""
    say(f"{'TABLE':24}  {'AT SOURCE':>10}  {'WRITTEN':>10}  {'MISSING':>10}")
    for each in copied:
        say(f"{each.table:24}  {each.at_source:10,}  {each.written:10,}  {each.missing:10,}")
    if missing := sum(each.missing for each in copied):
        complain(f"{missing:,} records are missing: run the same command once more.")
    return not missing


def _way(mark: StateMark) -> str:
    return f"to {mark.servers}" if mark.phase == "leaving" else f"back from {mark.servers}"


def _place(text: str) -> str:
    try:
        StateURL.parse(text)
        return text
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
