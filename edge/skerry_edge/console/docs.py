"""What the console has to read: the pages of `docs/`, the calls of an API, and a search over both.

Sources lie in the wheel, or in the repository that this runs from; they are read and rendered when
somebody opens the first of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from jinja2 import Environment, Template

from skerry.errors import NotFound
from skerry_edge.console.assets import CHECK_FIRST, Asset, Assets
from skerry_edge.console.markdown import PATH, DocPage, DocSection, rendered
from skerry_edge.console.reference import Call, calls_of

HERE = Path(__file__).parent
PACKAGED, IN_REPOSITORY = HERE / "docs", HERE.parents[2] / "docs"
TEMPLATE = HERE / "docs.html"
MAX_QUERY = 100  # characters
MAX_FOUND = 30  # sections

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Calling it": ("api", "sdk", "models", "limits", "caching", "usage", "telemetry"),
    "Running it": (
        "console", "install", "operations", "many-machines", "regions", "control", "terraform",
        "kubernetes", "dns", "security", "simulate",
    ),
    "How it is built": ("architecture", "request", "runners", "gpu", "benchmarks"),
}  # fmt: skip
OTHERS = "More"


class Docs:
    """All pages of a folder and all calls of an API, in the shell of a site's pages."""

    def __init__(
        self,
        assets: Assets,
        site: str,
        describe: Callable[[], Mapping[str, Any]],
        folder: Path | None = None,
    ) -> None:
        """`describe` makes the API's OpenAPI document. Without a folder it is this package's."""
        self._assets = assets
        self._site = site
        self._describe = describe
        self._folder = folder or (PACKAGED if PACKAGED.is_dir() else IN_REPOSITORY)

    def find(self, path: str, query: str = "") -> Asset:
        """Return what is at a path: a page, a picture, or the sections with all words of a query.

        It takes some milliseconds, the first time half a second. Raises NotFound, and OSError.
        """
        if path == PATH and (words := query[:MAX_QUERY].lower().split()):
            return self._shown("Docs", words=words, found=self._sections(words))
        if (document := self._documents.get(path)) is None:
            raise NotFound(f"The docs have no such page; {PATH} lists them.")
        return document

    @cached_property
    def _documents(self) -> Mapping[str, Asset]:
        """Make all pages and pictures, by path."""
        made = {each.address: self._shown(each.title, page=each) for each in self._pages.values()}
        made |= {each.address: self._shown(each.summary, call=each) for each in self._calls}
        for path in sorted(self._folder.glob("pictures/*.webp")):
            picture = Asset.of(path.read_bytes(), path.name, CHECK_FIRST)
            made[f"{PATH}/pictures/{path.name}"] = picture
        return made | {PATH: self._shown("Docs")}

    @cached_property
    def _pages(self) -> Mapping[str, DocPage]:
        """Read all pages, by name."""
        found = sorted(self._folder.glob("*.md"))
        return {path.stem: rendered(path.stem, path.read_text("utf-8")) for path in found}

    @cached_property
    def _calls(self) -> list[Call]:
        return calls_of(self._describe())

    @cached_property
    def _groups(self) -> Mapping[str, list[DocPage]]:
        """Sort pages by what they are for."""
        rest = dict(self._pages)
        groups = {
            group: [rest.pop(name) for name in names if name in rest]
            for group, names in GROUPS.items()
        }
        return groups | {OTHERS: list(rest.values())} if rest else groups

    @cached_property
    def _template(self) -> Template:
        environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
        return environment.from_string(TEMPLATE.read_text("utf-8"))

    def _shown(
        self,
        title: str,
        *,
        page: DocPage | None = None,
        call: Call | None = None,
        words: Sequence[str] = (),
        found: Sequence[DocSection] = (),
    ) -> Asset:
        """Return a page, a call, what was found, or the list of all, in the shell."""
        main = self._template.render(
            page=page, call=call, words=words, found=found, calls=self._calls,
            groups=self._groups.items(),
        )  # fmt: skip
        return self._assets.shell(self._site, f"{title} · Skerry", main)

    def _sections(self, words: Sequence[str]) -> list[DocSection]:
        """Return the sections that have all of some words, those first whose heading has more."""
        ranked: list[tuple[int, DocSection]] = []
        sections = [each for page in self._pages.values() for each in page.sections]
        for section in (*map(_section_of, self._calls), *sections):
            heading, text = f"{section.page} {section.title}".lower(), section.text.lower()
            if all(each in heading or each in text for each in words):
                ranked.append((sum(each not in heading for each in words), section))
        ranked.sort(key=lambda each: each[0])
        return [section for _, section in ranked[:MAX_FOUND]]


def _section_of(call: Call) -> DocSection:
    text = f"{call.method} {call.path}"
    return DocSection("API reference", call.address, call.summary, 1, text)
