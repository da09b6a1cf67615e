"""Where well-known addresses are, by the data that `skerry geo install` fetches.

    python -m bench.routing.geo [--json FILE]

For each address of `KNOWN`: the country that its operator says it is used in, the one that cloud
ranges and country data say, by whose word, and what country data alone would say. Exits with 1
where more than 5 % are wrong.
"""

from __future__ import annotations

import argparse
import ipaddress
import os
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.measuring import stats
from skerry_cli.home.geo_sources import open_known_places
from skerry_cli.home.state import Home
from skerry_regions.geo.whereabouts import KnownPlaces
from skerry_regions.topology.spec import Topology, TopologyRegion

MOST_WRONG = 0.05
KNOWN = (  # address, country, whose it is
    ("3.120.0.1", "DE", "AWS Frankfurt"),
    ("13.113.0.1", "JP", "AWS Tokyo"),
    ("18.130.0.1", "GB", "AWS London"),
    ("13.228.0.1", "SG", "AWS Singapore"),
    ("15.228.0.1", "BR", "AWS São Paulo"),
    ("13.236.0.1", "AU", "AWS Sydney"),
    ("3.6.0.1", "IN", "AWS Mumbai"),
    ("34.84.0.1", "JP", "Google Cloud Tokyo"),
    ("35.198.64.1", "DE", "Google Cloud Frankfurt"),
    ("34.87.0.1", "SG", "Google Cloud Singapore"),
    ("34.95.128.1", "BR", "Google Cloud São Paulo"),
    ("20.50.0.1", "NL", "Azure West Europe"),
    ("2a05:d014::1", "DE", "AWS Frankfurt"),
    ("193.0.6.139", "NL", "RIPE NCC"),
    ("202.12.27.33", "JP", "M root server, WIDE"),
    ("129.132.1.1", "CH", "ETH Zürich"),
    ("200.160.2.3", "BR", "NIC.br"),
    ("171.64.0.1", "US", "Stanford University"),
    ("212.58.224.1", "GB", "BBC"),
    ("162.158.88.1", "SG", "Cloudflare, towards origins"),
)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all answers there")
    options = parser.parse_args(argv)
    topology = Topology(regions=(TopologyRegion(name="fra", iata="FRA"),))
    known = open_known_places(Home.from_environ(os.environ), topology)
    if known is None:
        parser.error("there is no data: `skerry geo install` fetches it")
    table = Table("address", "whose", "in", "said", "by", "country data alone")
    rows: list[dict[str, object]] = []
    for text, country, owner in KNOWN:
        address = ipaddress.ip_address(text)
        place, source, _ = known.place(address)
        alone, _, _ = KnownPlaces(known.sources[-1:]).place(address)
        said = "" if place is None else place.country
        by = "" if source is None or place is None else place.source or source.path.name
        before = "" if alone is None else alone.country
        mark = said if said == country else f"[red]{said}[/red]"
        table.add_row(text, owner, country, mark, by, before)
        rows.append({"address": text, "in": country, "said": said, "by": by, "alone": before})
    console = Console(width=120)
    console.print(table)
    wrong = sum(row["said"] != row["in"] for row in rows)
    alone_wrong = sum(row["alone"] != row["in"] for row in rows)
    console.print(f"{wrong} of {len(rows)} wrong; by country data alone {alone_wrong}")
    stats.write(options.json, {"rows": rows})
    return int(wrong > MOST_WRONG * len(rows))


if __name__ == "__main__":
    sys.exit(main())
