"""An edge process in front of the nodes that the registry of HOME names: `skerry edge`, but that
it takes more streams at once than one does by default.

    python -m bench.workers.linked_edge HOME

Frames over a socket, routing by cost, usage journal and all. It answers as
`bench.workers.edge_replay` does.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from random import Random

import uvloop

from bench.subjects.models import MODEL, default_model
from bench.workers.edge_replay import STREAMS, serve_edge
from bench.workers.replay_node import REGION
from skerry_cli.home.state import Home
from skerry_edge.ledger.stores import Stores
from skerry_edge.text.model import TextModel
from skerry_regions.drivers.sqlite_registry import SqliteRegistry
from skerry_regions.region.cluster_state import ClusterState
from skerry_regions.region.cost_placer import CostPlacer
from skerry_regions.region.directory import Directory
from skerry_regions.region.remote_region import RemoteRegion
from skerry_regions.wire.protocol import VERSIONS, Hello, ModelBuild


async def run(home: Home) -> None:
    spec, files = default_model()
    text = TextModel(files, context_window=spec.context_window)
    build = ModelBuild(id=spec.id, tokenizer=files.tokenizer_digest, template=files.template_digest)
    hello = Hello(versions=[*VERSIONS], id="edge", models=[build], max_streams=STREAMS)
    state = ClusterState(REGION)
    directory = Directory(SqliteRegistry(home.registry), hello, state, region=REGION)
    placer = CostPlacer(directory, state, {MODEL: files.model_key}, Random())
    await directory.wait_until_served(frozenset({MODEL}))
    stores = Stores.in_folder(home.stores, edge="edge")
    gc.collect()
    gc.freeze()  # as `skerry edge` does
    try:
        region = RemoteRegion(directory.links, placer)
        await serve_edge(region, text, home.root, stores)
    finally:
        stores.close()
        await directory.close()


if __name__ == "__main__":
    uvloop.run(run(Home(Path(sys.argv[1]))))
