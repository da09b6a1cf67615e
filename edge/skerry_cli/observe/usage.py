"""`skerry usage`: what was used, by whom, and what it cost; read from the journals of this home, or
where it has none, from the platform that the SDK finds."""

from __future__ import annotations

import argparse
import csv
import io
import math
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from skerry_cli.arguments import Commands, add_command, count, number
from skerry_cli.home.state import JOURNAL_NAME, Home
from skerry_cli.output import complain, note, say
from skerry_cli.tables import table

DEFAULT_SINCE = "30d"
# Of the table: a heading, a field, how it is written.
COLUMNS: tuple[tuple[str, str, str], ...] = (
    ("REQUESTS", "requests", "d"),
    ("FROM CACHE", "cached_responses", "d"),
    ("NOT DONE", "not_done", "d"),
    ("PROMPT", "prompt_tokens", "d"),
    ("CACHED", "cached_tokens", "d"),
    ("KEPT", "written_tokens", "d"),
    ("OUTPUT", "output_tokens", "d"),
    ("PREFILL S", "prefill_seconds", ".1f"),
    ("DECODE S", "decode_seconds", ".1f"),
    ("US$", "cost", ".6f"),
)


def register(commands: Commands) -> None:
    """Add `skerry usage`."""
    parser = add_command(
        commands,
        "usage",
        show_usage,
        help="show tokens, seconds and cost by tenant, token, model or day",
        description=(
            "Sum the usage journals of this home, which need not be running; without any, ask the\n"
            "platform what this account used."
        ),
        example="skerry usage --by tenant,model --since 7d --format csv",
    )
    parser.add_argument(
        "--by",
        default="model",
        metavar="WHAT,…",
        help="tenant, token, model, day, edge; several with commas (default: model)",
    )
    parser.add_argument(
        "--since",
        default=DEFAULT_SINCE,
        metavar="WHEN",
        help="90m, 24h, 7d or 2w ago, or a UTC day such as 2026-11-01 (default: %(default)s)",
    )
    parser.add_argument("--tenant", metavar="ACCOUNT", help="of this account alone")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="HOME",
        help="compare what nodes cost per token here and in another home, for the same load",
    )
    parser.add_argument("--nodes", type=count, default=1, help="nodes here (default: 1)")
    parser.add_argument(
        "--against-nodes", type=count, metavar="NODES", help="nodes there (default: as many)"
    )
    parser.add_argument(
        "--node-hour",
        type=dollars,
        default=1.0,
        metavar="US$",
        help="price of a node for an hour (default: 1)",
    )
    parser.add_argument(
        "--format", choices=("table", "csv", "json"), default="table", help="default: table"
    )


def show_usage(args: argparse.Namespace) -> int:
    home = Home.from_environ(os.environ)
    if args.against is None and not journal_files(home):
        return show_remote(args)
    import msgspec

    from skerry_edge.ledger.usage_report import dimensions_of, journals, since_of, totals

    try:
        by, since = dimensions_of(args.by), since_of(args.since, time.time())
    except ValueError as error:
        return complain(f"{error}.")
    try:
        if args.against is not None:
            return compare(args, home, since)
        with journals(journal_files(home), since) as database:
            found = totals(database, by, since=since, tenant=args.tenant)
    except sqlite3.Error as error:
        return complain(f"a usage journal cannot be read: {error}.")
    write(args, by, [msgspec.to_builtins(total) for total in found])
    return 0


def show_remote(args: argparse.Namespace) -> int:
    """Print what the account used of the platform that the SDK finds."""
    from skerry import AI

    if args.tenant is not None:
        return complain(
            "this home has no usage journal; a platform tells an account its own alone."
        )
    with AI() as ai:
        lines = [dict(each) for each in ai.usage(by=args.by, since=args.since)]
    write(args, [name.strip() for name in args.by.split(",")], lines)
    return 0


def write(args: argparse.Namespace, by: Sequence[str], lines: Sequence[dict[str, Any]]) -> None:
    """Print sums as they are wanted."""
    written: dict[str, Callable[[], str]] = {
        "table": lambda: usage_table(by, lines),
        "csv": lambda: as_csv(lines),
        "json": lambda: as_json(lines),
    }
    say(written[args.format]())


def compare(args: argparse.Namespace, home: Home, since: float) -> int:
    """Return what a token cost here and there. Raises sqlite3.Error."""
    from skerry_edge.ledger.usage_compare import differences, run_of
    from skerry_edge.ledger.usage_report import journals

    runs = []
    for each, nodes in (
        (home, args.nodes),
        (Home(args.against.expanduser().absolute()), args.against_nodes or args.nodes),
    ):
        with journals(journal_files(each), since) as database:
            name, price = str(each.root), args.node_hour
            runs.append(run_of(database, name, nodes=nodes, node_hour=price, since=since))
    for run in runs:
        say(run.described())
    for line in differences(*runs):
        note(f"not the same load: {line}")
    first, second = (run.per_million_output for run in runs)
    if first and second:
        say(f"an output token costs {first / second:.2f} times as much here as there")
    return 0


def dollars(text: str) -> float:
    """Return a price above 0."""
    price = number(text)
    if not 0 < price < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a price above 0")
    return price


def journal_files(home: Home) -> list[Path]:
    """Return the journals of a home, one for each residency zone."""
    return sorted([*home.root.glob(JOURNAL_NAME), *home.root.glob(f"zones/*/{JOURNAL_NAME}")])


def usage_table(by: Sequence[str], lines: Sequence[dict[str, Any]]) -> str:
    """Return lines under headings, numbers to the right."""
    rows = []
    for line in lines:
        figures = {**line, "not_done": _not_done(line)}
        cells = (format(figures[field], form) for _, field, form in COLUMNS)
        rows.append([*(str(line[name]) for name in by), *cells])
    return table(
        [*(name.upper() for name in by), *(f">{heading}" for heading, *_ in COLUMNS)], rows
    )


def as_csv(lines: Sequence[dict[str, Any]]) -> str:
    """Return all figures, with a line of names first."""
    out = io.StringIO()
    if lines:
        writer = csv.DictWriter(out, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return out.getvalue().rstrip("\n")


def as_json(lines: Sequence[dict[str, Any]]) -> str:
    """Return all figures, as a list of objects."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(lines)).decode()


def _not_done(line: dict[str, Any]) -> int:
    """Return requests that ended without their whole answer, or have not ended."""
    fields = ("cancelled", "failed", "aborted", "running")
    return sum(line[field] for field in fields)
