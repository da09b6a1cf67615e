"""What all of `skerry models` share: its failures, its progress, and facts of models."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Generator
from typing import Any

import msgspec
import orjson

from skerry.errors import ModelNotFound
from skerry_cli.home.state import Home
from skerry_cli.output import complain
from skerry_cli.report import Bars, Lines
from skerry_regions.models.catalog import Catalog, CatalogError, ModelSpec
from skerry_regions.models.model_files import ModelFiles
from skerry_regions.models.problems import ModelProblem
from skerry_regions.models.pulling import Checks
from skerry_regions.models.sources import Hub, Progress
from skerry_regions.models.store import ModelStore


def guarded(
    command: Callable[[argparse.Namespace], int],
) -> Callable[[argparse.Namespace], int]:
    """Run the command, with the failures that a person can mend printed as a sentence."""

    def run(args: argparse.Namespace) -> int:
        try:
            return command(args)
        except ModelNotFound as error:
            return complain(f"{error.message} `skerry models list` shows all.")
        except (CatalogError, ModelProblem, OSError) as error:
            return complain(str(error))

    return run


def engine_checks() -> Checks:
    """Return what the engine says of models. Imports all of its formats."""
    from skerry_cli.composition.opening import CHECKS

    return CHECKS


def catalog_and_store() -> tuple[Catalog, ModelStore]:
    home = Home.from_environ(os.environ).root
    return Catalog.load(home), ModelStore(home, hub=Hub.from_environ(os.environ))


@contextlib.contextmanager
def progress_shown() -> Generator[Progress]:
    """Show progress on stderr: bars on a terminal, a line for each step elsewhere."""
    bars = Bars() if sys.stderr.isatty() else Lines()
    try:
        yield bars.show
    finally:
        bars.close()


def facts_of(spec: ModelSpec) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(spec)
    return facts


def installed_facts(files: ModelFiles) -> dict[str, Any]:
    return {
        "weights": str(files.weights),
        "tokenizer_dir": str(files.directory),
        "architecture": files.architecture,
        "context_length": files.context_length,
        "vocab_size": files.vocab_size,
        "stop_token_ids": list(files.stop_token_ids),
        "chat_template": files.chat_template,
        "tokenizer_digest": files.tokenizer_digest,
        "template_digest": files.template_digest,
        "weights_digest": files.weights_digest,
    }


def as_size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def as_json(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
