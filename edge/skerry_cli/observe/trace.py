"""`skerry trace`: where one request ran, why there, and where its time went."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from typing import TYPE_CHECKING

from skerry_cli.arguments import Commands, add_command
from skerry_cli.home.instance import running
from skerry_cli.home.state import Home
from skerry_cli.output import complain, note, say

if TYPE_CHECKING:
    from skerry._config import Settings

ANSWER_SECONDS = 10.0
REQUEST_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")


def register(commands: Commands) -> None:
    trace = add_command(
        commands,
        "trace",
        show,
        help="show what one request did: route, terms, timeline",
        description="Show where a request ran, the terms of that decision, and a timeline. Edges "
        "remember their last requests; a token with a role may ask.",
        example="skerry trace 0b0e7a52-7c0e-4c55-8f43-5a2f0a1d9c11",
    )
    trace.add_argument("request_id", metavar="REQUEST_ID", help="an answer's `x-request-id`")
    trace.add_argument("--json", action="store_true", help="print the trace as one JSON object")


def show(args: argparse.Namespace) -> int:
    from skerry._config import resolve

    request_id = str(args.request_id)
    if not is_request_id(request_id):
        return complain(f"{request_id[:80]!r} is not a request id.")
    settings = resolve(environ=os.environ)
    content: bytes | None = None
    for url in _edges(settings):
        content = _ask(url, settings, request_id)
        if content is not None:
            break
    if content is None:
        return complain(f"no edge remembers a request {request_id}.")
    if args.json:
        say(content.decode())
    else:
        from skerry_cli.observe.trace_view import print_trace

        print_trace(content, sys.stdout)
    return 0


def is_request_id(text: str) -> bool:
    """Return whether it can stand in a path."""
    return REQUEST_ID.fullmatch(text) is not None


def _edges(settings: Settings) -> list[str]:
    """Return the edge that is configured, then the others of the platform that runs here."""
    from skerry_cli.home.control import NoAnswer, ask_status

    urls = [settings.base_url]
    instance = running(Home.from_environ(os.environ))
    if instance is not None and instance.url == settings.base_url:
        try:
            urls += [edge.url for edge in ask_status(instance.control).edges]
        except NoAnswer as error:
            note(f"{error.problem}.")
    return list(dict.fromkeys(urls))


def _ask(url: str, settings: Settings, request_id: str) -> bytes | None:
    """Return an edge's trace as JSON; None when it has none. Raises what the edge's error stands
    for."""
    import httpx
    import msgspec

    from skerry._config import API_PREFIX
    from skerry._replies import error_from, transport_error

    path = f"{url}{API_PREFIX}/accounts/{settings.account_id}/ai/traces/{request_id}"
    headers = {"authorization": f"Bearer {settings.api_token}"}
    try:
        answer = httpx.get(path, headers=headers, timeout=ANSWER_SECONDS)
    except httpx.RequestError as error:
        raise transport_error(error, url) from None
    if answer.status_code == 404:
        return None
    if answer.is_error:
        raise error_from(answer.status_code, answer.headers, answer.content, time.time())
    return bytes(msgspec.json.decode(answer.content, type=dict[str, msgspec.Raw])["result"])
