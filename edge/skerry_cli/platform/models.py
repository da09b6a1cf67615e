"""`skerry models`: what the catalog has, and which of it is installed here."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import msgspec

from skerry.errors import ModelNotFound
from skerry_cli.arguments import Commands, add_command
from skerry_cli.home.state import Home
from skerry_cli.output import complain, say
from skerry_cli.report import Bars, Lines
from skerry_regions.models.catalog import Catalog, CatalogError, ModelSpec, add_alias, add_model
from skerry_regions.models.local_model import describe
from skerry_regions.models.sources import Hub, Progress
from skerry_regions.models.store import (
    ModelCorrupt,
    ModelFiles,
    ModelNotInstalled,
    ModelStore,
    PullError,
    UnsupportedModel,
)

_FAILURES = (
    CatalogError,
    ModelCorrupt,
    ModelNotFound,
    ModelNotInstalled,
    OSError,
    PullError,
    UnsupportedModel,
)


def register(commands: Commands) -> None:
    """Add `skerry models list|show|pull|verify|add`."""
    parser = commands.add_parser("models", help="list, show, pull, check and add models")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    listing = add_command(
        actions,
        "list",
        _guarded(list_models),
        help="list the catalog",
        description="List the models of the catalog, and which are installed.",
        example="skerry models list --json",
    )
    show = add_command(
        actions,
        "show",
        _guarded(show_model),
        help="everything about one model",
        description="Show what the catalog says about a model, and where its files are.",
        example="skerry models show @cf/huggingfacetb/smollm2-135m-instruct",
    )
    show.add_argument("model", help="id or alias")
    show.add_argument(
        "--tokenizer-dir",
        action="store_true",
        help="print only the folder that transformers' AutoTokenizer.from_pretrained reads",
    )
    pull = add_command(
        actions,
        "pull",
        _guarded(pull_models),
        help="fetch models",
        description="Fetch and check models; what is installed and whole is left as it is.",
        example="skerry models pull @cf/huggingfacetb/smollm2-135m-instruct",
    )
    pull.add_argument("model", nargs="+", help="id or alias")
    verify = add_command(
        actions,
        "verify",
        _guarded(verify_models),
        help="check installed files against their SHA-256",
        description="Read every file of installed models and compare its SHA-256.",
        example="skerry models verify",
    )
    verify.add_argument("model", nargs="*", help="id or alias; everything installed if not given")
    add = add_command(
        actions,
        "add",
        _guarded(add_own),
        help="serve a file of your own, or a model under another name",
        description=(
            "Add a GGUF file or a safetensors folder to the catalog; it is used where it lies.\n"
            "Given a model of the catalog, add another name for it."
        ),
        example=(
            "skerry models add ./my-model.gguf --as @cf/me/my-model\n"
            "  skerry models add @cf/me/my-model --as @cf/meta/llama-3.1-8b-instruct"
        ),
    )
    add.add_argument("source", help="a GGUF file, a safetensors folder, or a model's id")
    add.add_argument(
        "--as", dest="name", required=True, metavar="ID", help="name to serve it under"
    )
    for each in (listing, show, pull, verify, add):
        each.add_argument("--json", action="store_true", help="answer in JSON")


def list_models(args: argparse.Namespace) -> int:
    catalog, store = _catalog_and_store()
    models = [(spec, store.is_installed(spec)) for spec in catalog]
    if args.json:
        say(_json([{**_facts(spec), "installed": installed} for spec, installed in models]))
        return 0
    from rich.console import Console
    from rich.table import Column, Table

    columns = ("context", "size", "installed", "US$/M in · cached · out")
    table = Table(Column("model", no_wrap=True), *columns, box=None)
    for spec, installed in models:
        price = f"{spec.price.prompt:g} · {spec.price.cached:g} · {spec.price.output:g}"
        names = "\n= ".join((spec.id, *spec.aliases))
        yes = "yes" if installed else "no"
        table.add_row(names, str(spec.context_window), _size(spec.size), yes, price)
    Console(width=None if sys.stdout.isatty() else 160).print(table)
    return 0


def show_model(args: argparse.Namespace) -> int:
    catalog, store = _catalog_and_store()
    spec = catalog.resolve(args.model)
    if args.tokenizer_dir:
        with _progress() as progress:
            directory = store.open(spec, progress).directory
        say(_json({"tokenizer_dir": str(directory)}) if args.json else str(directory))
        return 0
    facts = _facts(spec)
    try:
        with _progress() as progress:
            facts["installed"] = _installed_facts(store.open(spec, progress))
    except ModelNotInstalled:
        facts["installed"] = None
    if args.json:
        say(_json(facts))
    else:
        for line in _lines(facts):
            say(line)
    return 0


def pull_models(args: argparse.Namespace) -> int:
    catalog, store = _catalog_and_store()
    specs = [catalog.resolve(name) for name in args.model]
    with _progress() as progress:
        pulled = [store.pull(spec, progress) for spec in specs]
    _answer(args, pulled, "is installed")
    return 0


def verify_models(args: argparse.Namespace) -> int:
    catalog, store = _catalog_and_store()
    if args.model:
        specs = [catalog.resolve(name) for name in args.model]
    else:
        specs = [spec for spec in catalog if store.is_installed(spec)]
    with _progress() as progress:
        verified = [store.verify(spec, progress) for spec in specs]
    _answer(args, verified, "is whole")
    return 0


def add_own(args: argparse.Namespace) -> int:
    catalog, store = _catalog_and_store()
    home = Home.from_environ(os.environ)
    path = Path(args.source).expanduser()
    if not path.exists():
        target = catalog.resolve(args.source)
        file = add_alias(home.root, args.name, target.id)
        say(_json({"id": target.id, "alias": args.name}) if args.json else _added(args, file))
        return 0
    with _progress() as progress:
        spec = describe(path, args.name, created=datetime.date.today(), progress=progress)
        files = store.pull(spec, progress)
    file = add_model(home.root, spec)
    facts = {**_facts(spec), "installed": _installed_facts(files)}
    say(_json(facts) if args.json else _added(args, file))
    return 0


def _added(args: argparse.Namespace, file: Path) -> str:
    return f"{args.name} is in {file}; serve it with `skerry up`."


def _answer(args: argparse.Namespace, models: list[ModelFiles], what: str) -> None:
    if args.json:
        say(_json([{"id": files.id, **_installed_facts(files)} for files in models]))
        return
    for files in models:
        say(f"{files.id} {what}: {files.weights}")


def _guarded(
    command: Callable[[argparse.Namespace], int],
) -> Callable[[argparse.Namespace], int]:
    """The command, with the failures that a person can mend told as a sentence."""

    def run(args: argparse.Namespace) -> int:
        try:
            return command(args)
        except ModelNotFound as error:
            return complain(f"{error.message} `skerry models list` shows all.")
        except _FAILURES as error:
            return complain(str(error))

    return run


def _catalog_and_store() -> tuple[Catalog, ModelStore]:
    home = Home.from_environ(os.environ).root
    return Catalog.load(home), ModelStore(home, hub=Hub.from_environ(os.environ))


@contextlib.contextmanager
def _progress() -> Generator[Progress]:
    """Progress on stderr: bars on a terminal, a line for each step elsewhere."""
    bars = Bars() if sys.stderr.isatty() else Lines()
    try:
        yield bars.show
    finally:
        bars.close()


def _facts(spec: ModelSpec) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(msgspec.json.encode(spec))
    return facts


def _installed_facts(files: ModelFiles) -> dict[str, Any]:
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


def _lines(facts: dict[str, Any], indent: str = "") -> Iterator[str]:
    """Facts for people, one per line."""
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


def _size(size: int) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)
