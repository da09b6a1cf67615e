"""`skerry models list` and `show`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from skerry.errors import ModelNotFound
from skerry_cli.output import note, say
from skerry_cli.platform.models.shared import (
    as_json,
    as_size,
    catalog_and_store,
    facts_of,
    installed_facts,
    progress_shown,
)
from skerry_regions.models.catalog import ModelSpec
from skerry_regions.models.hub_catalog import HubCatalog, HubModel, as_plain
from skerry_regions.models.local_model import EMBEDDERS, ENCODERS
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.problems import ModelNotInstalled

if TYPE_CHECKING:
    from rich.table import Table


def list_models(args: argparse.Namespace) -> int:
    catalog, store = catalog_and_store()
    models = [(spec, store.is_installed(spec)) for spec in catalog]
    ours = {spec.id for spec, _ in models}
    known = [model for model in HubCatalog.load() if model.id not in ours] if args.all else []
    if args.json:
        listed = [{**facts_of(spec), "installed": installed} for spec, installed in models]
        say(as_json([*listed, *({**as_plain(each), "installed": False} for each in known)]))
        return 0
    from rich.console import Console
    from rich.table import Column, Table

    columns = ("context", "size", "installed", "US$/M in · cached · out")
    table = Table(Column("model", no_wrap=True), *columns, box=None)
    for spec, installed in models:
        price = f"{spec.price.prompt:g} · {spec.price.cached:g} · {spec.price.output:g}"
        names = "\n= ".join((spec.id, *spec.aliases))
        yes = "yes" if installed else "no"
        table.add_row(names, str(spec.context_window), as_size(spec.size), yes, price)
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    if known:
        console.print(_to_pull(known))
    else:
        note("`skerry models list --all` shows models that can be pulled from a hub, too.")
    return 0


def _show_takes(takes: dict[str, Any]) -> None:
    """Show what a model takes, for people."""
    from rich.console import Console
    from rich.table import Table

    say(f"disk: {as_size(takes['disk'])}")
    say(f"weights: {as_size(takes['weights'])} of memory")
    if "needed" not in takes:
        return
    say(f"KV: {takes['kv_per_token'] / 1024:,.1f} KiB for each token")
    streams = [name for name in takes["needed"][0] if name != "context"]
    table = Table("context", *streams, box=None)
    for row in takes["needed"]:
        table.add_row(f"{row['context']:,}", *(as_size(row[name]) for name in streams))
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    if takes["free"] is not None:
        verdict = "fits" if takes["fits"] else "does not fit"
        least = f"{takes['needed'][0]['context']:,} tokens of one stream"
        say(f"{verdict} this machine with {least}: {as_size(takes['free'])} of memory are free")


def _takes(spec: ModelSpec, files: ModelFiles) -> dict[str, Any]:
    from skerry_cli.composition.loading import footprint

    return footprint(spec, files)


def _to_pull(known: list[HubModel]) -> Table:
    from rich.table import Column, Table

    from skerry_core.models.registry import FAMILIES

    runs = {"text-generation": tuple(FAMILIES), "text-embeddings": ENCODERS + EMBEDDERS}
    columns = ("context", "architecture", "licence", "US$/M in · out", "from")
    table = Table(Column("to be pulled", no_wrap=True), *columns, box=None)
    for model in known:
        price = f"{model.price.prompt:g} · {model.price.output:g}"
        gate = ", gated" if model.gated and model.gguf is None else ""
        table.add_row(
            model.id,
            str(model.context_window),
            model.model_type
            + ("" if model.model_type in runs.get(model.task, ENCODERS) else " (no runner yet)"),
            f"{model.license}{gate}",
            price,
            model.repository(model.usual),
        )
    return table


def show_model(args: argparse.Namespace) -> int:
    catalog, store = catalog_and_store()
    try:
        spec = catalog.resolve(args.model)
    except ModelNotFound:
        facts: dict[str, Any] = {
            **as_plain(HubCatalog.load().resolve(args.model)),
            "installed": None,
        }
        say(as_json(facts) if args.json else "\n".join(_lines(facts)))
        return 0
    if args.tokenizer_dir:
        with progress_shown() as progress:
            directory = store.open(spec, progress).directory
        say(as_json({"tokenizer_dir": str(directory)}) if args.json else str(directory))
        return 0
    facts = facts_of(spec)
    try:
        with progress_shown() as progress:
            files = store.open(spec, progress)
        facts["installed"] = installed_facts(files)
        facts["takes"] = _takes(spec, files)
    except ModelNotInstalled:
        facts["installed"] = None
    if args.json:
        say(as_json(facts))
        return 0
    takes: dict[str, Any] | None = facts.pop("takes", None)
    for line in _lines(facts):
        say(line)
    if takes is not None:
        _show_takes(takes)
    return 0


def _lines(facts: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Yield facts for people, one per line."""
    for key, value in facts.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for each in value:
                yield f"{indent}{key}:"
                yield from _lines(each, indent + "  ")
        elif isinstance(value, str) and "\n" in value:
            yield f"{indent}{key}:"
            yield from (f"{indent}  {line}" for line in value.splitlines())
        elif isinstance(value, list):
            yield f"{indent}{key}: {', '.join(map(str, value)) or 'none'}"
        else:
            yield f"{indent}{key}: {'no' if value is None else value}"
