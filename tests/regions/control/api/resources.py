"""Resources of a small platform, as they are written down."""

from __future__ import annotations

from tests.regions.control.support import MODEL

FRA = {"name": "fra", "iata": "FRA"}
DECODE = {"name": "decode", "region": "fra", "role": "decode", "model": MODEL}
