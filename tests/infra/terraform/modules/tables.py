"""Tables of a Terraform module's inputs and outputs, for its README.

`python -m tests.infra.terraform.modules.tables` writes them anew where a README has the two marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

TERRAFORM = Path(__file__).parents[4] / "infra" / "terraform"
FOLDERS = sorted(path.parent for path in TERRAFORM.glob("*/*/terraform.tf"))
BEGIN, END = "<!-- begin tables -->\n", "<!-- end tables -->\n"
BLOCK = re.compile(r'^(variable|output) "(\w+)" \{\n(.*?)^\}$', re.MULTILINE | re.DOTALL)
DESCRIPTION = re.compile(r'^  description = "((?:[^"\\]|\\.)*)"$', re.MULTILINE)
DEFAULT = re.compile(r"^  default += (.*)$", re.MULTILINE)


def tables(folder: Path) -> str:
    """As Markdown."""
    inputs = [
        f"| `{name}` | {_described(body)} | {_default(body)} |"
        for name, body in _blocks(folder / "variables.tf")
    ]
    outputs = [
        f"| `{name}` | {_described(body)} |" for name, body in _blocks(folder / "outputs.tf")
    ]
    lines = [
        *("| input | | default |", "|---|---|---|", *inputs, ""),
        *("| output | |", "|---|---|", *outputs, ""),
    ]
    return "\n".join(lines)


def with_tables(folder: Path) -> str:
    """The README of a module as it should be. Raises ValueError where it lacks the marks."""
    before, begin, rest = (folder / "README.md").read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{folder}/README.md has no marks for the tables")
    return f"{before}{BEGIN}{tables(folder)}{END}{after}"


def _blocks(file: Path) -> Iterator[tuple[str, str]]:
    for _, name, body in BLOCK.findall(file.read_text()):
        yield name, body


def _described(body: str) -> str:
    found = DESCRIPTION.search(body)
    if found is None:
        raise ValueError(f"no description in {body}")
    return re.sub(r"\\(.)", r"\1", found[1])


def _default(body: str) -> str:
    found = DEFAULT.search(body)
    return "required" if found is None else f"`{found[1]}`"


if __name__ == "__main__":
    for module in FOLDERS:
        (module / "README.md").write_text(with_tables(module))
