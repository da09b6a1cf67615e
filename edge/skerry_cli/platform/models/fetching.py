"""`skerry models pull` and `verify`."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from skerry_cli.home.shared.settings import share_edits
from skerry_cli.home.state import Home
from skerry_cli.output import complain, note, say
from skerry_cli.platform.models.shared import (
    as_json,
    catalog_and_store,
    engine_checks,
    installed_facts,
    progress_shown,
)
from skerry_regions.models.catalog_edits import pull_model, what_to_pull
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.pulling import PullRequest
from skerry_regions.models.sources import Progress


def pull_models(args: argparse.Namespace) -> int:
    if args.name is not None and len(args.model) > 1:
        return complain("--as names one model: pull the others by themselves")
    with progress_shown() as progress:
        pulled = [_pull(name, args.name, progress) for name in args.model]
    _answer(args, pulled, "is installed")
    return 0


def _pull(name: str, id: str | None, progress: Progress) -> ModelFiles:
    """Install a model of the catalog, or find one on a hub and put it there."""
    home = Home.from_environ(os.environ)
    asked = what_to_pull(home.root, name, id)
    pulled = pull_model(home.root, asked, engine_checks, progress)
    if isinstance(asked, PullRequest):
        share_edits(home, os.environ)
    for each in pulled.notes:
        note(f"{pulled.spec.id}: {each}")
    return pulled.files


def verify_models(args: argparse.Namespace) -> int:
    catalog, store = catalog_and_store()
    if args.model:
        specs = [catalog.resolve(name) for name in args.model]
    else:
        specs = [spec for spec in catalog if store.is_installed(spec)]
    with progress_shown() as progress:
        verified = [store.verify(spec, progress) for spec in specs]
        damaged = _remove_damaged(verified, progress)
    _answer(args, verified, "is whole")
    if damaged:
        return complain(
            f"damaged, and removed: {', '.join(map(str, damaged))}. These weights are packed again "
            "at the next start; what serves them now has to be started again."
        )
    return 0


def _remove_damaged(models: list[ModelFiles], progress: Progress) -> list[Path]:
    """Remove and return what was packed of models and is not as it was written."""
    from skerry_core.runners.packing.packed_file import damaged_packed

    cache = Home.from_environ(os.environ).cache
    progress("checking packed weights", 0.0)
    damaged = {path for files in models for path in damaged_packed(files.weights, cache)}
    progress("checking packed weights", 1.0)
    return sorted(damaged)


def _answer(args: argparse.Namespace, models: list[ModelFiles], what: str) -> None:
    if args.json:
        say(as_json([{"id": files.id, **installed_facts(files)} for files in models]))
        return
    for files in models:
        say(f"{files.id} {what}: {files.weights}")
