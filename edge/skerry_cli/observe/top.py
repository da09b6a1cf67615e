"""`skerry top`: regions, pools, nodes, queues, cache hits, streams, distances, as they change."""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from skerry_cli.arguments import Commands, add_command, positive_seconds
from skerry_cli.home.state import Home, known_config
from skerry_cli.observe.status import NOT_RUNNING, followed_status
from skerry_cli.output import note, say
from skerry_cli.tables import short_model

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

    from skerry_cli.home.control import Status
    from skerry_cli.observe.overview import NodeFigures, Overview, PoolView

SECONDS = 1.0


def register(commands: Commands) -> None:
    top = add_command(
        commands,
        "top",
        show,
        help="watch regions, pools, nodes and edges",
        description="A live table of what `skerry up` and the control plane run. Ctrl-C ends it.",
        example="skerry top --once",
    )
    top.add_argument("--once", action="store_true", help="print it once, for scripts and pipes")
    top.add_argument("--json", action="store_true", help="print one JSON object, once")
    top.add_argument(
        "--interval",
        type=positive_seconds,
        default=SECONDS,
        metavar="SECONDS",
        help="between looks; rates are over this time (default: %(default)g)",
    )


def show(args: argparse.Namespace) -> int:
    home = Home.from_environ(os.environ)
    if (read := followed_status(home)) is None:
        note(NOT_RUNNING)
        return 1
    token = known_config(home).api_token  # of an operator
    if args.once or args.json:
        return asyncio.run(_once(read, token, args.interval, as_json=args.json))
    return asyncio.run(_watch(read, token, args.interval))


async def _once(read: Callable[[], Status], token: str, interval: float, *, as_json: bool) -> int:
    """Look twice, so that there are rates."""
    import msgspec
    from rich.console import Console

    from skerry_cli.observe.overview import look

    before = await look(read, token)
    await asyncio.sleep(interval)
    overview = await look(read, token, before)
    if as_json:
        say(msgspec.json.encode(overview).decode())
        return 0
    Console().print(render(overview))
    return 0


async def _watch(read: Callable[[], Status], token: str, interval: float) -> int:
    from rich.live import Live

    from skerry_cli.observe.overview import look

    overview = await look(read, token)
    with Live(render(overview), auto_refresh=False, screen=True) as live:
        while True:
            await asyncio.sleep(interval)
            overview = await look(read, token, overview)
            live.update(render(overview), refresh=True)


def render(overview: Overview) -> Group:
    """Return the tables, one below the other."""
    from rich.console import Group

    tables = [_pools(overview), _nodes(overview), _distances(overview)]
    apart = [each for table in tables for each in ("", table)]
    return Group(f"{overview.url}", *apart, *overview.notes)


def _pools(overview: Overview) -> Table:
    table = _table("region", "pool", "model", ">nodes", ">streams", ">waiting", ">KV", ">hits",
                   ">tok/s")  # fmt: skip
    for pool in overview.pools:
        table.add_row(
            pool.region, pool.role, short_model(pool.model), f"{pool.ready}/{pool.nodes}",
            str(pool.streams), str(pool.waiting), *_figures(pool, pool.kv_used),
        )  # fmt: skip
    return table


def _nodes(overview: Overview) -> Table:
    table = _table("node", "state", ">streams", ">running", ">waiting", ">KV", ">hits", ">tok/s",
                   ">busy")  # fmt: skip
    for node in overview.nodes:
        engine = node.engine
        used = engine.blocks_used / engine.blocks if engine is not None and engine.blocks else None
        table.add_row(
            node.id, node.state, str(node.streams),
            "-" if engine is None else str(engine.running),
            "-" if engine is None else str(engine.waiting),
            *_figures(node, used), _share(node.busy),
        )  # fmt: skip
    return table


def _distances(overview: Overview) -> Table:
    regions = sorted({region for edge in overview.edges for region in edge.rtt})
    table = _table("edge", "region", "url", *(f">RTT {region}" for region in regions))
    for edge in overview.edges:
        rtts = [f"{edge.rtt[each] * 1e3:.1f} ms" if each in edge.rtt else "-" for each in regions]
        table.add_row(edge.id, edge.region, edge.url, *rtts)
    return table


def _table(*columns: str) -> Table:
    """Return a table; columns with a leading `>` are numbers."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in columns:
        if name[0] == ">":
            table.add_column(name[1:], justify="right", no_wrap=True)
        else:
            table.add_column(name, overflow="ellipsis", min_width=len(name))
    return table


def _figures(of: NodeFigures | PoolView, kv_used: float | None) -> tuple[str, str, str]:
    rate = of.tokens_per_second
    return _share(kv_used), _share(of.cache_hits), "-" if rate is None else f"{rate:.0f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.0f} %"
