"""What a home draws once and keeps to itself: secrets, readable by its owner only."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from pathlib import Path

from skerry_cli.home.errors import StateError
from skerry_cli.home.state import Home, replace_private
from skerry_regions.private_files import create_file
from skerry_regions.wire.link_auth import LinkCredentials
from skerry_regions.wire.link_certificates import LinkCertificates
from skerry_regions.wire.link_files import BadCertificates, LinkFiles
from skerry_regions.wire.link_key import LinkKey

LINK_VARIABLE = "SKERRY_LINK_TLS"  # a folder of certificates, or "off"
SECRET_BYTES = 32


def secret(home: Home) -> bytes:
    """Return the platform's secret, 32 bytes, drawn on first use: the root of the tenants' cache
    keys."""
    return _drawn_once(home.secret)


def control_key(home: Home) -> bytes:
    """Return 32 bytes that no machine is given: secrets that are shown twice follow from them."""
    return _drawn_once(home.control_key)


def cluster_key(home: Home) -> bytes:
    """Return what edges and nodes prove to each other that they hold: 32 bytes, drawn on first use.

    Raises `StateError` when others than the owner could read the file.
    """
    key = _drawn_once(home.cluster_key)
    if home.cluster_key.stat().st_mode & 0o077:
        raise StateError(
            f"Others may read {home.cluster_key}: `chmod 600 {home.cluster_key}` keeps it secret."
        )
    return key


def link_credentials(home: Home, environ: Mapping[str, str]) -> LinkCredentials:
    """Return what a process of this home proves over links with.

    Raises `StateError` when files cannot be used.
    """
    key = LinkKey(cluster_key(home))
    if environ.get(LINK_VARIABLE) == "off":
        return LinkCredentials(key, may_be_plain=True)
    files = link_files(home, environ)
    try:
        return LinkCredentials(key, LinkCertificates(files))
    except BadCertificates as error:
        raise StateError(f"{error}.") from None


def link_files(home: Home, environ: Mapping[str, str]) -> LinkFiles:
    """Return where this machine's certificates are: of an operator's own authority, or those that
    it gets when it joins. Raises `StateError` when the former are not there."""
    given = environ.get(LINK_VARIABLE, "")
    if given in ("", "off"):
        return LinkFiles.joined(home.machine)
    return given_files(given, LINK_VARIABLE)


def given_files(folder: str, source: str) -> LinkFiles:
    """Return certificates of an operator's own; `source` says where the folder is named. Raises
    `StateError` when one is not there."""
    files = LinkFiles.given(Path(folder).expanduser().absolute())
    if not files.are_there:
        where = files.certificate.parent
        raise StateError(f"{source}: {where} lacks one of tls.crt, tls.key and ca.crt.")
    return files


def _drawn_once(path: Path) -> bytes:
    """Return 32 random bytes of a file, the same for all processes that request it at once."""
    if not path.exists():
        _write_new(path, secrets.token_bytes(SECRET_BYTES))
    try:
        stored = path.read_bytes()
    except OSError as error:
        raise StateError(f"Cannot read {path}: {error.strerror}.") from None
    if len(stored) != SECRET_BYTES:
        raise StateError(f"{path} is damaged: delete it and run `skerry up` again.")
    return stored


def keep_private(path: Path, content: bytes) -> None:
    """Write a file that its owner alone may read, unless it says so already."""
    if not path.exists() or path.read_bytes() != content:
        replace_private(path, content)


def _write_new(path: Path, content: bytes) -> None:
    """Write a file whole, readable by its owner only, unless it is there already."""
    try:
        create_file(path, content)
    except OSError as error:
        raise StateError(f"Cannot write {path}: {error.strerror}.") from None
