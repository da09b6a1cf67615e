"""The response cache that several edges share, where an operator has a Redis server for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from skerry_cli.home.errors import CannotStart
from skerry_cli.home.keys import secret
from skerry_cli.home.state import Home
from skerry_edge.ledger.response_cache import AnswerCache
from skerry_edge.shared.redis_answers import Outcome, RedisAnswers, TieredAnswers
from skerry_regions.zones import GLOBAL, is_zone

VARIABLE = "SKERRY_RESPONSE_CACHE"


def share_answers(
    home: Home, environ: Mapping[str, str], count: Callable[[Outcome], None]
) -> Callable[[AnswerCache], AnswerCache]:
    """Return what puts the server of the home's zone, if there is one, behind an edge's own cache.
    Raises `CannotStart`."""
    url = server_of(environ.get(VARIABLE, ""), home.zone)
    if url is None:
        return lambda own: own
    try:
        shared = RedisAnswers(url, secret=secret(home), zone=home.zone, count=count)
    except ImportError:
        raise CannotStart(
            f"{VARIABLE} names a server: `pip install '.[redis]'` in Skerry's repository first"
        ) from None
    except ValueError:  # of redis-py, maybe with the password
        raise CannotStart(f"{VARIABLE}: the URL of {home.zone} cannot be used") from None
    return lambda own: TieredAnswers(own, shared)


def server_of(text: str, zone: str) -> str | None:
    """Return the URL for a zone out of `URL`, which is that of `global`, and `ZONE=URL`, between
    blanks; None: it has none. Raises `CannotStart`."""
    found: dict[str, str] = {}
    for each in text.split():
        name, is_named, url = each.partition("=")
        if not is_named or "/" in name:  # a URL may have a `=`
            name, url = GLOBAL, each
        if not is_zone(name) or not url.startswith(("redis://", "rediss://", "unix://")):
            raise CannotStart(f"{VARIABLE} is [ZONE=]redis://…, rediss://… or unix://…, by blanks")
        if name in found:
            raise CannotStart(f"{VARIABLE} has two servers for {name}")
        found[name] = url
    return found.get(zone)
