"""Everything that the provider `skerry` has. Another kind of resource is another line here."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from skerry_terraform.kit.planning import Object
from skerry_terraform.kit.provider import Provider
from skerry_terraform.provider.api_token import ApiTokenResource, EphemeralApiToken
from skerry_terraform.provider.client import ControlPlane
from skerry_terraform.provider.data_sources import (
    CollectionDataSource,
    PlatformStatusDataSource,
    ResourceDataSource,
)
from skerry_terraform.provider.deployment import DeploymentResource
from skerry_terraform.provider.dns import DnsAnswerDataSource, DnsRecordResource, DnsZoneResource
from skerry_terraform.provider.edge_node import EdgeNodeResource
from skerry_terraform.provider.functions import FUNCTIONS
from skerry_terraform.provider.pool import PoolResource
from skerry_terraform.provider.region import RegionResource
from skerry_terraform.provider.routing import RoutingResource
from skerry_terraform.provider.settings import SCHEMA, settings_of

REGION, EDGE_NODE, POOL, DEPLOYMENT = (
    RegionResource(),
    EdgeNodeResource(),
    PoolResource(),
    DeploymentResource(),
)
DNS_ZONE, DNS_RECORD, ROUTING = DnsZoneResource(), DnsRecordResource(), RoutingResource()


def configure(config: Object, stop: threading.Event) -> ControlPlane:
    """Make one of the provider block, the environment and this machine. Raises ProviderError."""
    return ControlPlane(settings_of(config, os.environ, Path.home()), stop)


SKERRY: Provider[ControlPlane] = Provider(
    name="skerry",
    schema=SCHEMA,
    configure=configure,
    release=ControlPlane.close,
    resources=(
        REGION,
        EDGE_NODE,
        POOL,
        DEPLOYMENT,
        ApiTokenResource(),
        DNS_ZONE,
        DNS_RECORD,
        ROUTING,
    ),
    data_sources=(
        ResourceDataSource(REGION),
        ResourceDataSource(EDGE_NODE),
        ResourceDataSource(POOL),
        ResourceDataSource(DEPLOYMENT),
        ResourceDataSource(DNS_ZONE),
        ResourceDataSource(DNS_RECORD),
        ResourceDataSource(ROUTING),
        DnsAnswerDataSource(),
        CollectionDataSource(REGION),
        CollectionDataSource(EDGE_NODE, by_region=True),
        CollectionDataSource(POOL, by_region=True),
        PlatformStatusDataSource(),
    ),
    ephemerals=(EphemeralApiToken(),),
    functions=FUNCTIONS,
)
