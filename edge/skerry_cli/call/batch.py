"""`skerry batch`: what waits in the queue of this home, or of its zone on NATS servers, and what
failed at every attempt. Needs no edge."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable
from datetime import UTC, datetime

from skerry_cli.arguments import Commands, add_command, add_residency, count
from skerry_cli.home.shared_state import open_queue, opened_state
from skerry_cli.home.state import Home
from skerry_cli.output import complain, say
from skerry_edge.api.batch.wire import decode_reply
from skerry_regions.queue import BatchRecord, ItemResult, Queue, QueueRefused

SHOWN_ITEMS = 100
SHOWN_TEXT = 200  # characters of an item's error


def register(commands: Commands) -> None:
    """Add `skerry batch list|show|cancel|retry`."""
    parser = commands.add_parser("batch", help="list, cancel and retry queued requests")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = add_command(
        actions,
        "list",
        _on_queue(list_batches),
        help="list batches, newest first",
        description="List batches. DEAD counts requests that failed at every attempt.",
        example="skerry batch list --dead",
    )
    add_residency(listing, of="the edges that took them")
    listing.add_argument("--dead", action="store_true", help="only those with dead letters")
    listing.add_argument("--limit", type=count, default=50, help="at most so many (default: 50)")
    for name, command, help, description in (
        ("show", show_batch, "how a batch ended", "Show a batch and what failed in it."),
        ("cancel", cancel_batch, "end a batch now", "End a batch; what is done stays."),
        ("retry", retry_batch, "give dead letters new attempts", "Queue dead requests again."),
    ):
        action = add_command(
            actions,
            name,
            _on_queue(command),
            help=help,
            description=description,
            example=f"skerry batch {name} batch_0123456789abcdef0123456789abcdef",
        )
        add_residency(action, of="the edge that took it")
        action.add_argument("id", help="the id that `skerry batch list` shows")


def list_batches(queue: Queue, args: argparse.Namespace) -> int:
    say(f"{'ID':38}  {'STATE':9}  {'TOTAL':>6}  {'DONE':>6}  {'FAILED':>6}  {'DEAD':>6}  MODEL")
    left, after = args.limit, None
    while left and (page := queue.batches(after=after, limit=100)):
        for each in page:
            if left and (each.dead or not args.dead):
                say(_row(each))
                left -= 1
        after = page[-1].id
    return 0


def show_batch(queue: Queue, args: argparse.Namespace) -> int:
    record = queue.batch(None, args.id)
    if record is None:
        return _unknown(args.id)
    say(f"{record.id}: {_state(record)}, {record.kind}, account {record.tenant}")
    say(f"model {record.model or 'none'}, from {_date(record.created_at)}")
    say(f"{record.total} requests: {record.succeeded} succeeded, {record.failed} failed, "
        f"{record.dead} of these at every attempt, {record.waiting} to do")  # fmt: skip
    shown, last = 0, -1
    while shown < SHOWN_ITEMS and (page := queue.results(record.id, after=last)):
        failed = [each for each in page if each.state != "succeeded"][: SHOWN_ITEMS - shown]
        for each in failed:
            say(f"  {each.index}  {each.reference or '-'}  {each.state}  {_why(each)}")
        shown, last = shown + len(failed), page[-1].index
    return 0


def cancel_batch(queue: Queue, args: argparse.Namespace) -> int:
    record = queue.batch(None, args.id)
    if record is None:
        return _unknown(args.id)
    if record.ending is not None:
        return complain(f"{record.id} has ended already: {record.ending}.")
    queue.cancel(record.tenant, record.id)
    say(f"{record.id} is cancelled; {record.succeeded} of {record.total} requests were done.")
    return 0


def retry_batch(queue: Queue, args: argparse.Namespace) -> int:
    try:
        record = queue.batch(None, args.id)
        if record is None:
            return _unknown(args.id)
        revived = queue.retry(record.tenant, record.id)
        if not revived:
            return complain(f"{record.id} has no dead requests that could be tried again.")
        say(f"{revived} requests of {record.id} wait again.")
    except QueueRefused as error:
        return complain(f"{error}.")
    return 0


def _on_queue(
    command: Callable[[Queue, argparse.Namespace], int],
) -> Callable[[argparse.Namespace], int]:
    """Return a command that opens the queue of its home and zone first."""

    async def run(args: argparse.Namespace) -> int:
        home = Home.from_environ(os.environ).in_zone(args.residency)
        home.create()
        async with opened_state(home, os.environ, "skerry batch") as state:
            queue = open_queue(home, state)
            try:
                return await asyncio.to_thread(command, queue, args)
            finally:
                queue.close()

    return lambda args: asyncio.run(run(args))


def _unknown(id: str) -> int:
    return complain(f"There is no batch {id}; `skerry batch list` shows them.")


def _row(record: BatchRecord) -> str:
    return (
        f"{record.id:38}  {_state(record):9}  {record.total:6}  {record.succeeded:6}  "
        f"{record.failed:6}  {record.dead:6}  {record.model}"
    )


def _state(record: BatchRecord) -> str:
    return record.ending or ("running" if record.started_at else "queued")


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _why(item: ItemResult) -> str:
    if not item.result:
        return ""
    reply = decode_reply(item.result)
    return f"HTTP {reply.status}: {bytes(reply.body).decode(errors='replace')[:SHOWN_TEXT]}"
