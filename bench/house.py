"""What the house is like: rooms, arrows between them, files, names and lines of the product.

    python -m bench.house [--base REV] [--json FILE]

`--base` adds the same figures of a git revision. Nothing is imported: all of it is read by its
syntax (see `bench.measuring.tree`), and layers are those of that revision's `pyproject.toml`.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.measuring import stats
from bench.measuring.tree import FILES_OF_A_FOLDER, LINES_OF_A_FILE, Tree

ROOT = Path(__file__).parents[1]


def figures(tree: Tree) -> dict[str, int]:
    """By name, in the order in which they are shown."""
    of_files = {
        "files": len(tree.modules),
        "rooms": len(tree.rooms),
        "arrows between rooms": len(tree.arrows),
        "imports that run up": len(tree.up),
        "imports that run up, for types alone": len(tree.up_for_types),
        "circles of rooms": len(tree.circles),
        "circles of files": len(tree.circles_of_files),
        "files of the fullest folder": max(tree.folders.values()),
        f"folders of more than {FILES_OF_A_FOLDER} files": len(tree.full_folders),
        f"files of more than {LINES_OF_A_FILE} lines": len(tree.long_files),
        "class names of more than one class": len(tree.repeated_classes),
        "lines of code": sum(tree.code_lines.values()),
    }
    return of_files | {f"  {name}": lines for name, lines in tree.code_lines.items()}


def details(tree: Tree) -> list[str]:
    """What is named where a figure is not zero."""
    return [
        *(f"up: {one} → {other}" for one, other in tree.up),
        *(f"up, for types: {one} → {other}" for one, other in tree.up_for_types),
        *(f"circle: {' ⇄ '.join(circle)}" for circle in tree.circles + tree.circles_of_files),
        *(f"full: {name} ({number} files)" for name, number in tree.full_folders.items()),
        *(f"long: {path} ({lines} lines)" for path, lines in tree.long_files.items()),
        *(f"twice: {name} in {', '.join(at)}" for name, at in tree.repeated_classes.items()),
    ]


def at_revision(revision: str) -> Tree:
    """The tree that git keeps."""
    archive = subprocess.run(
        ["git", "archive", "--format=tar", revision], cwd=ROOT, check=True, capture_output=True
    )
    with tempfile.TemporaryDirectory(prefix="skerry-house-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            files.extractall(folder, filter="data")
        return Tree.read(Path(folder))


def main(argv: Sequence[str] | None = None) -> None:
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    options.add_argument("--base", metavar="REV", help="a git revision to compare with")
    options.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    given = options.parse_args(argv)
    now = Tree.read(ROOT)
    columns = {"now": figures(now)}
    if given.base is not None:
        columns = {given.base: figures(at_revision(given.base))} | columns
    table = Table("", *columns, box=None)
    for name in dict.fromkeys(name for column in columns.values() for name in column):
        table.add_row(name, *(f"{column.get(name, 0):,}" for column in columns.values()))
    console = Console()
    console.print(table)
    for line in details(now):
        console.print(line, style="dim", highlight=False, soft_wrap=True)
    stats.write(given.json, columns | {"details": details(now)})


if __name__ == "__main__":
    main()
