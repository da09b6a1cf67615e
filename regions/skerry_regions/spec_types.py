"""Types of what operators write down, in topologies and to the control plane."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Name = Annotated[str, Meta(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]  # a DNS label
Size = Annotated[str, Meta(pattern=r"^(none|[0-9]{1,6}(\.[0-9]{1,3})?[KMGT]iB)$")]
Latitude = Annotated[float, Meta(ge=-90, le=90)]
Longitude = Annotated[float, Meta(ge=-180, le=180)]
IPAddress = Annotated[str, Meta(max_length=45)]
DomainName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_@*.-]{1,253}$")]
