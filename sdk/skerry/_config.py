"""Where the platform is and who calls: arguments, the environment, or what `skerry up` wrote.

A token is only ever sent to the platform that issued it: that of `config.json` when its own URL is
used, that of the environment when the environment's URL is (the home's, where it names none). A URL
that is given in code gets no token but one given in code, unless it is the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from skerry.errors import NotConfigured

API_PREFIX = "/client/v4"
MAX_CONFIG_BYTES = 64 * 1024
MAX_FIELD_LENGTH = 4096  # characters

HOW_TO_CONFIGURE = (
    "Start a platform on this machine with `skerry up`, or set SKERRY_BASE_URL, SKERRY_ACCOUNT_ID "
    "and SKERRY_API_TOKEN, or pass base_url, account_id and api_token."
)

WITHHELD = (
    "SKERRY_API_TOKEN is sent to SKERRY_BASE_URL only, and the base_url given in code is another: "
    "pass api_token too, or set SKERRY_BASE_URL."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A platform's address, without a trailing slash or `/client/v4`, and the caller's account."""

    base_url: str
    account_id: str
    api_token: str = field(repr=False)
    account_url: str  # what lies below the account begins with it


def resolve(
    *,
    base_url: str | None = None,
    account_id: str | None = None,
    api_token: str | None = None,
    environ: Mapping[str, str],
) -> Settings:
    """Settle each of the three values. Raises `NotConfigured` naming what is missing or wrong.

    An empty environment variable counts as absent.
    """
    own_url, own_token = environ.get("SKERRY_BASE_URL"), environ.get("SKERRY_API_TOKEN")
    url, token = base_url or own_url, api_token
    account = account_id or environ.get("SKERRY_ACCOUNT_ID")
    is_complete = url and account and (token or (own_token and not base_url))
    written = {} if is_complete else read_config(config_path(environ))
    written_url = _normalise_url(written["url"]) if "url" in written else None
    is_withheld = False
    if not token and own_token:  # is the URL that of the environment?
        home_url = _normalise_url(own_url) if own_url else written_url
        is_withheld = bool(base_url) and _normalise_url(base_url or "") != home_url
        token = None if is_withheld else own_token
    if not url or _normalise_url(url) == written_url:
        url = url or written_url
        account = account or written.get("account_id")
        token = token or written.get("api_token")
    values = {"base_url": url, "account_id": account, "api_token": token}
    if missing := [name for name, value in values.items() if not value]:
        why = WITHHELD if is_withheld else HOW_TO_CONFIGURE
        raise NotConfigured(f"No {' and no '.join(missing)} given. {why}")
    base_url, account_id = _normalise_url(url or ""), _one_word("account_id", account or "")
    return Settings(
        base_url=base_url,
        account_id=account_id,
        api_token=_one_word("api_token", token or ""),
        account_url=f"{base_url}{API_PREFIX}/accounts/{account_id}",
    )


def config_path(environ: Mapping[str, str]) -> Path:
    """Return `config.json` under SKERRY_HOME, by default `~/.skerry`."""
    home = environ.get("SKERRY_HOME")
    return (Path(home) if home else Path.home() / ".skerry") / "config.json"


def read_config(path: Path) -> dict[str, str]:
    """Return the string values of a config file; empty when there is none.

    Raises `NotConfigured` for a file that cannot be read as a small JSON object.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_CONFIG_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as exc:
        raise NotConfigured(f"Cannot read {path}: {exc.strerror}. {HOW_TO_CONFIGURE}") from exc
    if len(raw) > MAX_CONFIG_BYTES:
        raise NotConfigured(f"{path} is larger than {MAX_CONFIG_BYTES} bytes. {HOW_TO_CONFIGURE}")
    try:
        content: Any = json.loads(raw)
    except (ValueError, RecursionError) as exc:
        raise NotConfigured(f"{path} is not valid JSON. {HOW_TO_CONFIGURE}") from exc
    if not isinstance(content, dict):
        raise NotConfigured(f"{path} does not hold a JSON object. {HOW_TO_CONFIGURE}")
    return {key: value for key, value in content.items() if isinstance(value, str)}


def _normalise_url(url: str) -> str:
    """Return scheme, host, port and path prefix, so that `…/client/v4/` and `…` are the same."""
    trimmed = url.strip().rstrip("/").removesuffix(API_PREFIX).rstrip("/")
    if not _is_base_url(trimmed):
        raise NotConfigured(
            f"base_url must look like http://127.0.0.1:8787 or https://host, got {url[:200]!r}."
        )
    return trimmed


def _is_base_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port_fits = parts.port is None or parts.port > 0  # `port` raises beyond 65535
    except ValueError:
        return False
    known = parts.scheme in ("http", "https") and bool(parts.hostname) and port_fits
    return known and not parts.query and not parts.fragment


def _one_word(name: str, value: str) -> str:
    """Return `value` when it can stand in a header or a path. The value itself is never shown."""
    word = value.strip()
    if not word.isascii() or not word.isprintable() or " " in word or "/" in word:
        raise NotConfigured(f"{name} holds characters that no {name} has. {HOW_TO_CONFIGURE}")
    if len(word) > MAX_FIELD_LENGTH:
        raise NotConfigured(f"{name} is longer than {MAX_FIELD_LENGTH} characters.")
    return word
