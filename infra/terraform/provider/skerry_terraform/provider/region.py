"""`skerry_region`: a place where nodes and edges stand."""

from __future__ import annotations

from skerry_terraform.kit.diagnostics import Diagnostics
from skerry_terraform.kit.planning import Object
from skerry_terraform.kit.schema import Attr, Schema, above, between, matching
from skerry_terraform.kit.values import BOOL, NUMBER
from skerry_terraform.provider.resource import LABEL, ControlResource, common, timeouts

_check_iata = matching("[A-Z]{3}", "the three capital letters of an airport")


PATH = {
    "to": Attr(required=True, check=LABEL, doc="Name of the other region."),
    "rtt": Attr(NUMBER, optional=True, check=above(0, 10), doc="Seconds."),
    "bandwidth": Attr(NUMBER, optional=True, check=above(0, 1e14), doc="Bytes per second."),
}


class RegionResource(ControlResource):
    name = "region"
    collection = "regions"
    schema = Schema(
        doc="A place where nodes and edges stand: an airport, or coordinates.",
        attributes=common(
            name=Attr(required=True, replace=True, check=LABEL, doc="A DNS label, such as fra."),
            iata=Attr(optional=True, check=_check_iata, doc="Airport near it, such as FRA."),
            latitude=Attr(NUMBER, optional=True, check=between(-90, 90), doc="Degrees."),
            longitude=Attr(NUMBER, optional=True, check=between(-180, 180), doc="Degrees."),
            residency=Attr(default="global", doc="Zone that its data does not leave."),
            draining=Attr(BOOL, default=False, doc="End what runs there as its streams do."),
            paths=Attr(
                nested=PATH,
                nesting="list",
                default=[],
                doc="What to assume of paths to other regions, until they are measured; each at "
                "one of its ends.",
            ),
        ),
        blocks=timeouts("delete"),
    )

    def validate(self, config: Object, diagnostics: Diagnostics) -> None:
        latitude, longitude = config["latitude"], config["longitude"]
        if (latitude is None) != (longitude is None):
            missing = "latitude" if latitude is None else "longitude"
            diagnostics.error(
                f"Missing {missing}", "latitude and longitude belong together", (missing,)
            )
        elif latitude is None and config["iata"] is None:
            diagnostics.error("Missing iata", "give an airport, or latitude and longitude")
