"""Files of a hub's repository over HTTP, resumed where they broke. See `sources`."""

from __future__ import annotations

from http import HTTPStatus
from pathlib import Path
from typing import Final
from urllib.parse import quote

import httpx

from skerry_regions.models.catalog import ModelFile, ModelSpec
from skerry_regions.models.sources import Hub, Progress, PullError

HUB_ATTEMPTS: Final = 5  # connections per file before giving up; each goes on where the last ended
HUB_TIMEOUT: Final = httpx.Timeout(60.0, connect=15.0)  # seconds, per read


def fetch_from_hub(
    spec: ModelSpec,
    repository: str,
    revision: str,
    inner: str,
    folder: Path,
    hub: Hub,
    progress: Progress,
) -> None:
    """Bring the files of a `hub:` source into `folder`. Raises `PullError`."""
    if hub.endpoint is None:
        raise PullError(
            f"{spec.id} comes from a hub: set SKERRY_HUB_ENDPOINT to its base URL and pull again"
        )
    headers = {"Authorization": f"Bearer {hub.token}"} if hub.token else {}
    prefix = f"{inner}/" if inner else ""
    base = f"{hub.endpoint.rstrip('/')}/{repository}/resolve/{quote(revision)}"
    with httpx.Client(
        headers=headers, timeout=HUB_TIMEOUT, follow_redirects=True, max_redirects=5
    ) as client:
        for file in spec.files:
            url = f"{base}/{quote(prefix + file.name)}"
            _download(client, url, file, folder / file.name, progress)


def _download(
    client: httpx.Client, url: str, file: ModelFile, target: Path, progress: Progress
) -> None:
    """Download one file, going on after what `target` already has."""
    problem = ""
    for _ in range(HUB_ATTEMPTS):
        have = target.stat().st_size if target.exists() else 0
        if have == file.size:
            return
        if have > file.size:
            target.unlink()
            have = 0
        try:
            _download_rest(client, url, file, target, have, progress)
        except httpx.HTTPStatusError as error:
            status = error.response.status_code
            problem = f"HTTP {status}"
            if status < 500 and status not in (408, 429):
                break
        except httpx.HTTPError as error:
            problem = str(error) or type(error).__name__
        else:
            problem = f"the server closed the connection after {target.stat().st_size} bytes"
            if target.stat().st_size == file.size:
                return
    raise PullError(
        f"{file.name}: could not be downloaded from {url} ({problem}). "
        "What arrived is kept: pull again to go on from there."
    )


def _download_rest(
    client: httpx.Client, url: str, file: ModelFile, target: Path, have: int, progress: Progress
) -> None:
    headers = {"Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    with client.stream("GET", url, headers=headers) as response:
        response.raise_for_status()
        resumed = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if not (response.status_code == HTTPStatus.PARTIAL_CONTENT and resumed):
            have = 0
        with target.open("ab" if have else "wb") as out:
            for chunk in response.iter_raw():  # as it arrives: a broken connection loses none
                have += len(chunk)
                if have > file.size:
                    raise PullError(f"{file.name}: the server sends more than {file.size} bytes")
                out.write(chunk)
                progress(f"downloading {file.name}", have / file.size)
