"""Caps of accounts, written into `limits.yaml`: all else of the file, comments too, stays."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import yaml

from skerry_cli.home.errors import raised_as
from skerry_edge.gate.quotas import Quotas, load_quotas
from skerry_regions.control.desired.views import AccountCaps
from skerry_regions.control.errors import Conflict
from skerry_regions.models.catalog import Catalog, CatalogError
from skerry_regions.models.located_yaml import YamlError


class LimitsFile:
    """The file of a home, for the control API (`Accounts`). Methods block for milliseconds."""

    def __init__(
        self, path: Path, catalog: Callable[[], Catalog], edited: Callable[[], None]
    ) -> None:
        """`edited` is called after the file was. `catalog` may raise CatalogError."""
        self._path = path
        self._catalog = catalog
        self._edited = edited

    def caps(self, ids: Iterable[str]) -> list[AccountCaps]:
        """Return the caps of accounts, and of all that have limits of their own, by id.

        Raises Conflict for a file that cannot be used.
        """
        quotas = self._read(self._path)
        return [_caps_of(quotas, id) for id in sorted({*ids, *quotas.tenants})]

    def change(self, id: str, patch: Mapping[str, float | None]) -> tuple[AccountCaps, AccountCaps]:
        """Set caps of an account; return those before, and those after. Raises Conflict."""
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            before = _caps_of(self._read(self._path), id)
            after = msgspec.structs.replace(before, **dict(patch))
            if before == after:
                return before, after
            text = self._path.read_text(encoding="utf-8") if self._path.exists() else ""
            draft = self._path.with_name(f"{self._path.name}.new")
            edited = with_caps(text, after)
            try:
                with draft.open("w", encoding="utf-8") as file:
                    file.write(edited)
                    file.flush()
                    os.fsync(file.fileno())
                if self._path.exists():
                    draft.chmod(stat.S_IMODE(self._path.stat().st_mode))
                self._read(draft)
                os.replace(draft, self._path)
            finally:
                draft.unlink(missing_ok=True)
        except OSError as error:
            raise Conflict(f"{self._path} cannot be written: {error.strerror}") from None
        finally:
            os.close(folder)
        self._edited()
        return before, after

    def _read(self, path: Path) -> Quotas:
        with raised_as(Conflict, YamlError, CatalogError):
            return load_quotas(path, self._catalog())


def _caps_of(quotas: Quotas, id: str) -> AccountCaps:
    caps = quotas.account(id).caps
    return AccountCaps(id=id, per_day=caps.per_day, per_month=caps.per_month)


def with_caps(text: str, caps: AccountCaps) -> str:
    """Return a file's text with the caps of an account in it.

    One that has no limits of its own gets those of every tenant beside them, in whose place its
    entry is. Raises Conflict for a form that cannot be edited in place.
    """
    wanted: dict[str, Any] = yaml.safe_load(text) or {}
    tenants: list[dict[str, Any]] = wanted.setdefault("tenants", None) or []
    place = next((i for i, each in enumerate(tenants) if each["account"] == caps.id), None)
    others = wanted.get("every_tenant") or {} if place is None else tenants[place]
    given = {"per_day": caps.per_day, "per_month": caps.per_month}
    entry = {"account": caps.id, **others, **given}
    entry = {name: value for name, value in entry.items() if value is not None}
    wanted["tenants"] = [*tenants, entry] if place is None else [*tenants]
    if place is not None:
        wanted["tenants"][place] = entry
    line = yaml.safe_dump(entry, default_flow_style=True, sort_keys=False, width=1 << 20).strip()
    start, end, inserted = _edit(yaml.compose(text), text, line, place)
    edited = text[:start] + inserted + text[end:]
    try:
        found = yaml.safe_load(edited)
    except yaml.YAMLError:
        found = None
    if _by_account(found) != _by_account(wanted):
        raise Conflict(
            "limits.yaml is in a form that is not edited from here: write on the control plane's "
            f"machine, below `tenants`: {line}"
        )
    return edited


def _edit(root: yaml.Node | None, text: str, line: str, place: int | None) -> tuple[int, int, str]:
    """Return what to put in place of which part of the text."""
    node = None
    if isinstance(root, yaml.MappingNode):
        node = next((each for key, each in root.value if key.value == "tenants"), None)
    if isinstance(node, yaml.SequenceNode) and node.value:
        if place is not None:
            return node.value[place].start_mark.index, _end(node.value[place]), line
        start = node.start_mark.index
        if node.flow_style:
            return start + 1, start + 1, f"{line}, "
        return start, start, f"- {line}\n{' ' * node.start_mark.column}"
    if node is not None:  # there is none in it
        return node.start_mark.index, node.end_mark.index, f"[{line}]"
    gap = "" if not text or text.endswith("\n") else "\n"
    return len(text), len(text), f"{gap}tenants:\n  - {line}\n"


def _end(node: yaml.Node) -> int:
    """Return where a node's own text ends: a block's mark is behind the comments after it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        return _end(last[1] if isinstance(last, tuple) else last)
    return int(node.end_mark.index)


def _by_account(content: Any) -> Any:
    """Return what a file says, whatever the order of its tenants."""
    if not isinstance(content, dict) or not isinstance(content.get("tenants"), list):
        return content
    return {**content, "tenants": {each["account"]: each for each in content["tenants"]}}
