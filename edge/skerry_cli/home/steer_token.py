"""The token by which a DNS server reads what edges report (`GET /regions`)."""

from __future__ import annotations

import time
from collections.abc import Mapping

from skerry_cli.home.errors import CannotStart, StateError
from skerry_cli.home.keys import keep_private
from skerry_cli.home.shared.settings import opened_tokens
from skerry_cli.home.state import Home, read_config
from skerry_edge.gate.token_file import TokenStoreError
from skerry_edge.gate.tokens import TokenStore


def steer_token(home: Home, environ: Mapping[str, str]) -> str:
    """Return the token, or nothing where there is none.

    For edges of this home it is of the scope `steer` alone, drawn once and kept; for others it is
    SKERRY_API_TOKEN. Raises `CannotStart` or `StateError`.
    """
    config = read_config(home)
    if config is None:
        return environ.get("SKERRY_API_TOKEN", "")
    path = home.steer_token
    try:
        kept = path.read_text().strip() if path.exists() else ""
        if TokenStore(home.tokens).authenticate(kept) is None:
            with opened_tokens(home, environ, "skerry dns") as tokens:
                kept, _ = tokens.create(
                    account_id=config.account_id,
                    name="skerry dns",
                    scopes=("steer",),
                    now=int(time.time()),
                )
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            keep_private(path, f"{kept}\n".encode())
    except TokenStoreError as error:
        raise CannotStart(str(error)) from None
    except OSError as error:
        raise StateError(f"Cannot read or write {path}: {error.strerror}.") from None
    return kept
