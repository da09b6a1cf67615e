"""Everything that the provider `skerry` has. Another kind of resource is another line here."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from skerry_terraform.kit.planning import Object
from skerry_terraform.kit.provider import Provider
from skerry_terraform.provider.api_token import ApiToken, EphemeralApiToken
from skerry_terraform.provider.client import ControlPlane
from skerry_terraform.provider.data_sources import All, One, PlatformStatus
from skerry_terraform.provider.deployment import Deployment
from skerry_terraform.provider.dns import DnsAnswer, DnsRecord, DnsZone
from skerry_terraform.provider.edge_node import EdgeNode
from skerry_terraform.provider.functions import FUNCTIONS
from skerry_terraform.provider.pool import Pool
from skerry_terraform.provider.region import Region
from skerry_terraform.provider.settings import SCHEMA, settings_of

REGION, EDGE_NODE, POOL, DEPLOYMENT = Region(), EdgeNode(), Pool(), Deployment()
DNS_ZONE, DNS_RECORD = DnsZone(), DnsRecord()


def configure(config: Object, stop: threading.Event) -> ControlPlane:
    """Of the provider block, the environment and this machine. Raises ProviderError."""
    return ControlPlane(settings_of(config, os.environ, Path.home()), stop)


SKERRY: Provider[ControlPlane] = Provider(
    name="skerry",
    schema=SCHEMA,
    configure=configure,
    release=ControlPlane.close,
    resources=(REGION, EDGE_NODE, POOL, DEPLOYMENT, ApiToken(), DNS_ZONE, DNS_RECORD),
    data_sources=(
        One(REGION),
        One(EDGE_NODE),
        One(POOL),
        One(DEPLOYMENT),
        One(DNS_ZONE),
        One(DNS_RECORD),
        DnsAnswer(),
        All(REGION),
        All(EDGE_NODE, by_region=True),
        All(POOL, by_region=True),
        PlatformStatus(),
    ),
    ephemerals=(EphemeralApiToken(),),
    functions=FUNCTIONS,
)
