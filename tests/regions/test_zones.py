"""Zones by name, and in the ids of what is kept in them."""

from __future__ import annotations

import pytest

from skerry_regions.zones import GLOBAL, elsewhere, id_in, zone_of_id


@pytest.mark.parametrize("prefix", ["resp_", "file-", "batch_", ""])
def test_an_id_names_its_zone(prefix: str) -> None:
    assert id_in("eu-west", prefix, "3f2a") == f"{prefix}eu-west.3f2a"
    assert zone_of_id(id_in("eu-west", prefix, "3f2a")) == "eu-west"


@pytest.mark.parametrize(
    "id",
    [
        "resp_0b5e8f0c-6d1c-4a5e-9d0a-4f8c9f6a2b11",
        "resp_batch_0123456789abcdef-3",
        "file-0123456789abcdef",
        "0b5e8f0c-6d1c-4a5e-9d0a-4f8c9f6a2b11",
        "resp_.x",
        "resp_EU.x",
        ".",
        "",
    ],
)
def test_an_id_of_before_zones_names_none(id: str) -> None:
    assert zone_of_id(id) is None
    assert elsewhere(id, "eu") == ""


def test_ids_of_the_global_zone_are_as_ever() -> None:
    assert id_in(GLOBAL, "file-", "3f2a") == "file-3f2a"


def test_a_response_to_an_item_of_a_batch_names_the_edges_zone() -> None:
    assert zone_of_id(id_in("eu", "resp_", id_in("eu", "batch_", "0123") + "-3")) == "eu"


def test_what_is_kept_in_another_zone_is_said_to_be_there() -> None:
    assert elsewhere("file-us.3f2a", "eu") == " It is kept in 'us': send it to an edge there."
    assert elsewhere("file-us.3f2a", "us") == ""
