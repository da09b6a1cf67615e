"""All streams of a platform, with their bounds."""

from __future__ import annotations

from skerry_regions.drivers.jetstream.specs import GIB, MIB, StreamSpec
from skerry_regions.zones import GLOBAL

DAY_SECONDS = 24 * 3600.0

MONEY = StreamSpec(
    table="money",  # PAYER: caps, and what each edge may spend
    max_bytes=256 * MIB,
    max_message_bytes=64 * 1024,
    max_age_seconds=70 * DAY_SECONDS,  # since it was last written: all its periods are over
    is_durable=True,
)
SETTINGS = StreamSpec(
    table="settings",  # see `skerry_edge.shared.settings_messages`
    max_bytes=256 * MIB,
    max_message_bytes=800 * 1024,
    is_durable=True,
    has_ttl=True,
)
RATES = StreamSpec(
    table="rates",  # see `skerry_edge.shared.nats_rates`
    max_bytes=64 * MIB,
    max_message_bytes=64 * 1024,
    storage="memory",
    discard="old",
    has_ttl=True,
)
RESPONSES = StreamSpec(
    table="responses",  # TENANT.ID: an answer and its conversation; TENANT.ID.N: a piece of it
    max_bytes=GIB,
    max_message_bytes=320 * 1024,
    max_age_seconds=DAY_SECONDS,
    discard="old",
    is_immutable=True,
)
IDEMPOTENCY = StreamSpec(
    table="idempotency",  # TENANT.DIGEST: a key's first request
    max_bytes=256 * MIB,
    max_message_bytes=16 * 1024,
    max_age_seconds=DAY_SECONDS,
    discard="old",
)
FILES = StreamSpec(
    table="files",  # see `skerry_edge.shared.nats_files`
    max_bytes=4 * GIB,
    max_message_bytes=320 * 1024,
    max_age_seconds=30 * DAY_SECONDS + 3600,  # pieces are written up to an hour before their head
    is_immutable=True,
    is_atomic=True,
)
USAGE = StreamSpec(
    table="usage",  # EDGE: rows of its home's journal, see `skerry_edge.shared.nats_usage`
    max_bytes=GIB,  # about as many rows as a journal has
    max_message_bytes=320 * 1024,
    keeps=0,
    max_age_seconds=90 * DAY_SECONDS,
    discard="old",
)
BATCHES = StreamSpec(
    table="batches",  # see `drivers.jetstream.queue.batch_table`
    max_bytes=GIB,
    max_message_bytes=320 * 1024,
    is_durable=True,
    is_immutable=True,
    is_atomic=True,
)
CONTROL = StreamSpec(
    table="control",  # tx: a transaction of the control plane's, see `control.desired.logged_store`
    max_bytes=GIB // 2,
    max_message_bytes=1_000_000,  # servers take 1 MiB unless configured otherwise
    keeps=0,
    max_messages=1_000_000,  # a thousand times as many as lie between two pictures
    discard="old",
    is_durable=True,
    is_log=True,
)
PICTURES = StreamSpec(
    table="control-pictures",  # NAME: the whole database; NAME.N: a piece of it
    max_bytes=GIB // 2,
    max_message_bytes=320 * 1024,
    is_durable=True,
)
LEASES = StreamSpec(
    table="leases",  # KEY: who leads
    max_bytes=MIB,
    max_message_bytes=16 * 1024,
    storage="memory",
    has_ttl=True,
)

OF_PLATFORM = (MONEY, RATES, SETTINGS)
"""Streams of which a platform has one each, in the zone `global`: they have no content."""
OF_ZONE = (RESPONSES, IDEMPOTENCY, FILES, USAGE, BATCHES)
"""Streams that every zone has."""


def declared(zone: str) -> list[tuple[StreamSpec, str]]:
    """Return all streams that an edge of a zone uses."""
    return [(spec, GLOBAL) for spec in OF_PLATFORM] + [(spec, zone) for spec in OF_ZONE]


OF_CONTROL = [(spec, GLOBAL) for spec in (CONTROL, PICTURES, LEASES)]
"""Streams that control planes use."""
