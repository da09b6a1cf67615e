"""What browsers load: a table of whole files, read and packed once, at the start.

A path is looked up in the table and nowhere else, so no path leads out of it. Scripts and styles
lie below a digest of all of them: they may be kept for ever, and a page never has parts of two
versions.
"""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
SHELL = "index.html"
ROOT, SITE, TITLE, MAIN = "{{static}}", "{{site}}", "{{title}}", "{{main}}"  # in the shell
NO_SCRIPTS = (
    '<main id="main" tabindex="-1"><noscript>The console needs JavaScript from this server. All '
    "that it shows is in the API, too.</noscript></main>"
)
STATIC = "/console/static/"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".webp": "image/webp",
}
FOR_EVER = "private, max-age=31536000, immutable"
CHECK_FIRST = "no-cache"


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is sent."""

    content: bytes
    packed: bytes  # by gzip
    media_type: str
    etag: str
    caching: str

    @classmethod
    def of(cls, content: bytes, name: str, caching: str) -> Asset:
        return cls(
            content,
            gzip.compress(content, 9, mtime=0),
            TYPES[Path(name).suffix],
            f'"{_digest(content)}"',
            caching,
        )

    def answer(self, headers: Headers) -> Response:
        """Return the file as the request's headers want it: packed or plain, or that it is what
        the browser has."""
        fields = {"etag": self.etag, "cache-control": self.caching, "vary": "accept-encoding"}
        known = {
            each.strip().removeprefix("W/") for each in headers.get("if-none-match", "").split(",")
        }
        if self.etag in known:
            return Response(status_code=304, headers=fields)
        content = self.content
        if _takes_gzip(headers.get("accept-encoding", "")):
            content, fields["content-encoding"] = self.packed, "gzip"
        return Response(content, headers=fields | {"content-type": self.media_type})


class Assets:
    """The files of the console, by the path that they are requested at."""

    def __init__(self) -> None:
        """Raises OSError."""
        files = packaged()
        others = {name: content for name, content in sorted(files.items()) if name != SHELL}
        self.root = STATIC + _digest(b"\0".join(_named(others))) + "/"
        self._by_path = {
            self.root + name: Asset.of(content, name, FOR_EVER) for name, content in others.items()
        }
        self._shell = files[SHELL].decode().replace(ROOT, self.root)

    def shell(self, site: str, title: str = "Skerry", main: str = NO_SCRIPTS) -> Asset:
        """Return the shell of a site's pages around what one begins with, which is HTML."""
        page = self._shell.replace(SITE, site).replace(TITLE, escape(title)).replace(MAIN, main)
        return Asset.of(page.encode(), SHELL, CHECK_FIRST)

    def find(self, path: str) -> Asset | None:
        """Return the file of a path; None where there is none."""
        return self._by_path.get(path)


def packaged() -> dict[str, bytes]:
    """Read the files of this package, by name. Raises OSError."""
    return {
        path.relative_to(FOLDER).as_posix(): path.read_bytes()
        for path in sorted(FOLDER.rglob("*"))
        if path.suffix in TYPES
    }


def _named(files: Mapping[str, bytes]) -> list[bytes]:
    return [part for name, content in files.items() for part in (name.encode(), content)]


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=12).hexdigest()


def _takes_gzip(field: str) -> bool:
    """Return whether an `Accept-Encoding` names gzip, and not to refuse it."""
    for each in field.lower().split(","):
        name, _, weight = each.partition(";")
        if name.strip() in ("gzip", "*"):
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False
