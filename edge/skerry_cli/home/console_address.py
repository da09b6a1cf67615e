"""The address that opens the console in a browser, with a code that logs it in once."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

from skerry_cli.home.keys import control_key, secret
from skerry_cli.home.state import Config, Home
from skerry_edge.console.codes import CONTROL_PLANE, new_code
from skerry_regions.address import is_loopback
from skerry_regions.spec_types import ConsoleMode


def console_address(home: Home, config: Config, edge: str, mode: ConsoleMode) -> str | None:
    """Return an address of an edge's console that logs in the holder of the home's token, for a
    minute; None where the console is not shown there. Raises StateError."""
    host = urlsplit(config.url).hostname or ""
    if mode == "off" or (mode == "loopback" and not is_loopback(host)):
        return None
    code = new_code(secret(home), edge, token_id_of(config.api_token), time.time())
    return f"{config.url}/console/#login={code}"


def token_id_of(token: str) -> str:
    """Return the id in an API token's text: what is no secret of it."""
    return token.split("_")[1] if token.count("_") > 1 else ""


def control_address(home: Home, config: Config) -> str:
    """Return one of the control plane's console, likewise. Raises StateError."""
    token_id = token_id_of(config.api_token)
    code = new_code(control_key(home), CONTROL_PLANE, token_id, time.time())
    return f"{config.control_url}/console/#login={code}"
