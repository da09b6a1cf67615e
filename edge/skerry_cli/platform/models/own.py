"""`skerry models add`, `remove` and `compress`: an operator's own models, and further names."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path

from skerry_cli.home.shared.settings import share_edits
from skerry_cli.home.state import Home
from skerry_cli.output import complain, say
from skerry_cli.platform.models.shared import (
    as_json,
    catalog_and_store,
    engine_checks,
    facts_of,
    installed_facts,
    progress_shown,
)
from skerry_regions.models.catalog import operator_catalog, packaged_ids
from skerry_regions.models.catalog_edits import add_alias, add_own, check_new, remove_model


def add_models(args: argparse.Namespace) -> int:
    catalog, _ = catalog_and_store()
    home = Home.from_environ(os.environ)
    check_new(args.name, replaces=args.replace)
    path = Path(args.source).expanduser()
    if not path.exists():
        target = catalog.resolve(args.source)
        add_alias(home.root, args.name, target.id)
        share_edits(home, os.environ)
        say(as_json({"id": target.id, "alias": args.name}) if args.json else _added(args, home))
        return 0
    with progress_shown() as progress:
        added = add_own(home.root, path, args.name, engine_checks, progress)
    share_edits(home, os.environ)
    facts = {**facts_of(added.spec), "installed": installed_facts(added.files)}
    say(as_json(facts) if args.json else _added(args, home))
    return 0


def _added(args: argparse.Namespace, home: Home) -> str:
    return f"{args.name} is in {operator_catalog(home.root)}; serve it with `skerry up`."


def remove_models(args: argparse.Namespace) -> int:
    home = Home.from_environ(os.environ)
    removed = []
    for name in args.model:
        done = remove_model(home.root, name)
        removed.append(dataclasses.asdict(done))
        if done.from_catalog:
            share_edits(home, os.environ)
        if not args.json:
            say(_removed(name, from_catalog=done.from_catalog, comes_along=name in packaged_ids()))
    if args.json:
        say(as_json(removed))
    return 0


def compress_model(args: argparse.Namespace) -> int:
    """Write a copy of a safetensors folder that takes fewer bytes, with the same weights."""
    from skerry_core.models.compression import compress
    from skerry_core.weights.tensors import WeightsError

    source, target = Path(args.source).expanduser(), Path(args.target).expanduser()
    with progress_shown() as progress:
        try:
            before, after = compress(source, target, lambda share: progress(source.name, share))
        except WeightsError as error:
            return complain(f"{error}.")
    facts = {"path": str(target), "bytes_before": before, "bytes_after": after}
    sizes = f"{before / 1e6:,.1f} MB became {after / 1e6:,.1f} MB, {after / before:.1%}"
    say(
        as_json(facts)
        if args.json
        else f"{sizes}; serve it by `skerry models add {target} --as ID`."
    )
    return 0


def _removed(name: str, *, from_catalog: bool, comes_along: bool) -> str:
    if comes_along:
        where = "Yours is gone" if from_catalog else "Its files are gone"
        return f"{where}; {name} comes with Skerry: `skerry models pull {name}` gets it again."
    return f"{name} is no longer in the catalog. A platform that runs serves it until it stops."
