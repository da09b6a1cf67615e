"""Files of a hub's repository: large ones by the transfer, each blob once."""

from __future__ import annotations

from pathlib import Path

from skerry_regions.models.blobs import Blobs
from skerry_regions.models.catalog import ModelFile, ModelSpec
from skerry_regions.models.hub import HubClient
from skerry_regions.models.problems import PullError
from skerry_regions.models.sources import Hub, Progress
from skerry_regions.models.transfer import Transfer


class HubFiles:
    """A repository at one commit, whose files become blobs."""

    def __init__(self, client: HubClient, repository: str, commit: str, blobs: Blobs) -> None:
        self._client = client
        self._repository = repository
        self._commit = commit
        self._blobs = blobs
        self._transfer = Transfer(client.client)

    def fetch(self, path: str, file: ModelFile, progress: Progress) -> None:
        """Have a file among the blobs. Raises `PullError` and `OSError`."""

        def bring(target: Path) -> None:
            self._transfer.fetch(
                file.name,
                file.size,
                file.sha256,
                lambda: self._client.locate(self._repository, self._commit, path),
                target,
                progress,
            )

        self._blobs.obtain(file.sha256, file.size, file.name, bring, progress)


def fetch_from_hub(
    spec: ModelSpec,
    repository: str,
    revision: str,
    inner: str,
    folder: Path,
    hub: Hub,
    blobs: Blobs,
    progress: Progress,
) -> None:
    """Bring the files of a `hub:` source into `folder`. Raises `PullError`."""
    with HubClient(hub) as client:
        files = HubFiles(client, repository, revision, blobs)
        for file in spec.files:
            if blobs.link(file.sha256, folder / file.name):
                continue
            files.fetch(f"{inner}/{file.name}" if inner else file.name, file, progress)
            if not blobs.link(file.sha256, folder / file.name):
                raise PullError(f"{file.name}: was removed by another process; pull again")
