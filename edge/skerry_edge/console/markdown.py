"""Markdown of `docs/` as HTML, by CommonMark's rules: HTML of a page is text.

It is rendered here and not in the browser, where the policy of pages takes no HTML out of a script.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

PATH = "/console/docs"
AROUND = 90  # characters of a section on either side of what was found

_PAGE = re.compile(r"([a-z0-9-]+)\.md(#.*)?")
_PICTURE = re.compile(r"pictures/[a-z0-9-]+\.webp")
_NOT_IN_ANCHORS = re.compile(r"[^\w\- ]")


@dataclass(frozen=True, slots=True)
class DocSection:
    """What stands below one heading, as text."""

    page: str  # its title
    address: str
    title: str
    depth: int  # 1: of the whole page
    text: str

    def excerpt(self, words: Sequence[str]) -> list[str]:
        """Return what stands around the first of some words, in parts: every second is a word."""
        places = (self.text.lower().find(each) for each in words)
        first = min((at for at in places if at >= 0), default=0)
        start, end = max(0, first - AROUND), first + AROUND
        part = self.text[start:end]
        shown = ("…" if start else "") + part + ("…" if end < len(self.text) else "")
        return re.split(f"({'|'.join(map(re.escape, words))})", shown, flags=re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DocPage:
    """One file of `docs/`."""

    name: str
    title: str
    lead: str  # its first sentence
    article: Markup
    sections: tuple[DocSection, ...]

    @property
    def address(self) -> str:
        return f"{PATH}/{self.name}"


def rendered(name: str, source: str) -> DocPage:
    """Return a page whose links and pictures are the console's."""
    reader = _reader()
    tokens = reader.parse(source)
    places = _places(tokens, "heading_open")
    titles = [_text(tokens[place + 1]) for place in places] or [name]
    sections = list[DocSection]()
    anchors = set[str]()
    for (start, end), title in zip(pairwise([*places, len(tokens)]), titles, strict=False):
        anchor = _anchor(title, anchors)
        tokens[start].attrSet("id", anchor)
        address, depth = f"{PATH}/{name}#{anchor}", int(tokens[start].tag[1])
        text = " ".join(filter(None, map(_text, tokens[start + 3 : end])))
        sections.append(DocSection(titles[0], address, title, depth, text))
    for place in (*_places(tokens, "th_open"), *_places(tokens, "td_open")):
        _mend_cell(*tokens[place : place + 3])
    for place in _places(tokens, "inline"):
        _lead_here(tokens[place].children or [])
    paragraphs = (_text(tokens[place + 1]) for place in _places(tokens, "paragraph_open"))
    lead = re.split(r"(?<=\.)\s", next(paragraphs, ""), maxsplit=1)[0]
    article = Markup(reader.renderer.render(tokens, reader.options, {}))
    return DocPage(name, titles[0], lead, article, tuple(sections))


def _reader() -> MarkdownIt:
    """Return what reads pages: wide tables and code scroll by keys, too."""
    from markdown_it import MarkdownIt  # 40 ms, for pages that few open

    def table_open(*_: Any) -> str:
        return '<div class="scroll" tabindex="0" role="group" aria-label="Table"><table>'

    def fence(tokens: Sequence[Token], place: int, *_: Any) -> str:
        return f'<pre tabindex="0"><code>{escape(tokens[place].content)}</code></pre>'

    reader = MarkdownIt("commonmark", {"html": False}).enable("table")
    rules: dict[str, Any] = reader.renderer.rules  # type: ignore[attr-defined]
    rules |= {"table_open": table_open, "table_close": lambda *_: "</table></div>", "fence": fence}
    return reader


def _places(tokens: Sequence[Token], kind: str) -> list[int]:
    return [place for place, token in enumerate(tokens) if token.type == kind]


def _text(token: Token) -> str:
    """Return a token's text without its marks."""
    if token.type == "fence":
        return token.content
    shown = [each for each in token.children or () if not each.type.endswith(("_open", "_close"))]
    return "".join(" " if each.type == "softbreak" else each.content for each in shown)


def _anchor(title: str, taken: set[str]) -> str:
    """Return the name by which links know a heading, as GitHub makes it."""
    slug = _NOT_IN_ANCHORS.sub("", title.lower()).replace(" ", "-")
    names = (f"{slug}-{number}" if number else slug for number in count())
    anchor = next(each for each in names if each not in taken)
    taken.add(anchor)
    return anchor


def _mend_cell(cell: Token, inline: Token, end: Token) -> None:
    """Have a class for a style, which the policy forbids, and no head that heads nothing."""
    if "right" in str(cell.attrs.pop("style", "")):
        cell.attrSet("class", "num")
    if not inline.content:
        cell.tag = end.tag = "td"


def _lead_here(tokens: Sequence[Token]) -> None:
    """Have links between pages, and pictures, lead to where the console has them. What is in the
    repository alone is named, and no link."""
    tag = "a"
    for token in tokens:
        match token.type:
            case "image":
                source = str(token.attrs["src"])
                if _PICTURE.fullmatch(source):
                    token.attrs |= {"src": f"{PATH}/{source}", "loading": "lazy"}
                else:
                    token.type = "text"
            case "link_open":
                target = str(token.attrs["href"])
                page = _PAGE.fullmatch(target)
                is_here = page is not None or target.startswith(("#", "https://"))
                token.tag = tag = "a" if is_here else "span"
                if page is not None:
                    token.attrs["href"] = f"{PATH}/{page[1]}{page[2] or ''}"
                elif not is_here:
                    token.attrs = {"title": f"{target}, in the repository"}
            case "link_close":
                token.tag = tag
            case _:
                pass
