"""Installed models: pulled once, checked always, opened in milliseconds.

    SKERRY_HOME/models/
        @cf+huggingfacetb+smollm2-135m-instruct/   one folder per model, put in place by one rename
            SmolLM2-135M-Instruct.Q4_1.gguf        absent for a `file:` source: used in place
            tokenizer.json  tokenizer_config.json  made once from the weights' own tokenizer
            model.json                             `ModelMetadata`
            verified.json                          what the SHA-256 of each file was computed over
        .pulling/                                  unfinished downloads, gone on with next time
        .locks/                                    one per model, so that two pulls do not meet

A file is opened only when it is the one of the catalog: its size always, its SHA-256 when the file
changed since it was last computed.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from skerry_regions.models import sources, tokenizer_files
from skerry_regions.models.catalog import ModelFile, ModelSpec
from skerry_regions.models.model_files import ModelFiles as ModelFiles
from skerry_regions.models.model_files import ModelMetadata, digest
from skerry_regions.models.sources import Hub, Progress
from skerry_regions.models.sources import PullError as PullError
from skerry_regions.models.tokenizer_files import UnsupportedModel as UnsupportedModel

FORMAT: Final = 1  # of model.json and of the tokenizer conversion; another one is made anew
HASH_CHUNK: Final = 4 << 20  # bytes


class ModelNotInstalled(Exception):
    """The model's files are not here; the message says how to get them."""


class ModelCorrupt(Exception):
    """A file is not the catalog's; the message names it and what is wrong."""


class Installed(Struct, frozen=True, kw_only=True):
    """Content of `model.json`."""

    format: int
    metadata: ModelMetadata


class Stamp(Struct, frozen=True):
    """The state of a file when its SHA-256 was computed."""

    size: int
    modified_ns: int
    sha256: str


class ModelStore:
    """The models under one SKERRY_HOME. Safe to use from several processes at once."""

    def __init__(self, home: Path, *, hub: Hub | None = None) -> None:
        self._root = home / "models"
        self._hub = hub or Hub()

    def pull(self, spec: ModelSpec, progress: Progress) -> ModelFiles:
        """Install a model, or open it when it is installed and whole.

        Raises `PullError`, `ModelCorrupt` or `UnsupportedModel`; what was installed before stays.
        """
        with self._lock(spec, progress):
            try:
                return self.open(spec, progress)
            except (ModelNotInstalled, ModelCorrupt):
                return self._install(spec, progress)

    def open(self, spec: ModelSpec, progress: Progress | None = None) -> ModelFiles:
        """The files of an installed model, checked.

        Reads no large file unless it changed. Raises `ModelNotInstalled` or `ModelCorrupt`.
        """
        folder = self._folder(spec)
        weights_folder = sources.local_folder(spec) or folder
        installed = self._read_installed(spec, folder)
        self._check(spec, weights_folder, folder, progress, force=False)
        return _model_files(spec, folder, weights_folder, installed.metadata)

    def verify(self, spec: ModelSpec, progress: Progress | None = None) -> ModelFiles:
        """As `open`, with the SHA-256 of every file computed again."""
        folder = self._folder(spec)
        weights_folder = sources.local_folder(spec) or folder
        installed = self._read_installed(spec, folder)
        self._check(spec, weights_folder, folder, progress, force=True)
        return _model_files(spec, folder, weights_folder, installed.metadata)

    def is_installed(self, spec: ModelSpec) -> bool:
        """Whether the model was installed, without looking at its files."""
        return (self._folder(spec) / "model.json").exists()

    # --- installing

    def _install(self, spec: ModelSpec, progress: Progress) -> ModelFiles:
        pulling = self._root / ".pulling" / self._folder(spec).name
        pulling.mkdir(parents=True, exist_ok=True)
        for leftover in filter(Path.is_dir, list(pulling.iterdir())):
            shutil.rmtree(leftover)  # scratch of a pull that was killed
        weights_folder = sources.local_folder(spec)
        if weights_folder is None:
            weights_folder = pulling
            sources.fetch(spec, pulling, self._hub, progress)
        try:
            self._check(spec, weights_folder, pulling, progress, force=True)
        except ModelCorrupt:
            shutil.rmtree(pulling)  # going on after wrong bytes would never end well
            raise
        progress("converting the tokenizer", 0.0)
        _write_metadata(spec, weights_folder, pulling)
        progress("converting the tokenizer", 1.0)
        _sync(pulling)
        self._put_in_place(pulling, self._folder(spec))
        return self.open(spec)

    def _put_in_place(self, made: Path, folder: Path) -> None:
        """Rename the finished folder; a reader sees the old model, the new one, or none."""
        old = made.with_name(made.name + ".old")
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        made.rename(folder)
        _sync_folder(self._root)
        shutil.rmtree(old, ignore_errors=True)

    @contextmanager
    def _lock(self, spec: ModelSpec, progress: Progress) -> Generator[None]:
        """Hold the model's lock; the system releases it when the process ends, however it ends."""
        locks = self._root / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / self._folder(spec).name).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress("waiting for another pull of this model", 0.0)
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    # --- checking

    def _folder(self, spec: ModelSpec) -> Path:
        return self._root / spec.id.replace("/", "+")  # ids have no "+"

    def _read_installed(self, spec: ModelSpec, folder: Path) -> Installed:
        how = f"run `skerry models pull {spec.id}`"
        try:
            data = (folder / "model.json").read_bytes()
        except FileNotFoundError:
            raise ModelNotInstalled(f"{spec.id} is not installed: {how}") from None
        try:
            installed = msgspec.json.decode(data, type=Installed)
        except msgspec.DecodeError as error:
            raise ModelCorrupt(f"{spec.id}: model.json is damaged ({error}); {how}") from None
        if installed.format != FORMAT:
            raise ModelNotInstalled(f"{spec.id} was installed by another version of Skerry: {how}")
        tokenizer = folder / "tokenizer.json"
        stated = installed.metadata.tokenizer_digest
        if not tokenizer.exists() or digest(tokenizer.read_bytes()) != stated:
            raise ModelCorrupt(f"{spec.id}: tokenizer.json is missing or damaged; {how}")
        if installed.metadata.weights_digest != _weights_digest(spec):
            raise ModelNotInstalled(f"{spec.id} is installed from other files: {how}")
        return installed

    def _check(
        self,
        spec: ModelSpec,
        weights_folder: Path,
        folder: Path,
        progress: Progress | None,
        *,
        force: bool,
    ) -> None:
        """Compare every file with the catalog; hash those without a valid stamp in `folder`."""
        stamps = {} if force else _read_stamps(folder)
        fresh: dict[str, Stamp] = {}
        for file in spec.files:
            path = weights_folder / file.name
            status = _status(spec, path)
            if status.st_size != file.size:
                word = "truncated" if status.st_size < file.size else "too long"
                raise ModelCorrupt(
                    f"{spec.id}: {path} is {word}: {status.st_size:,} of {file.size:,} bytes"
                )
            stamp = Stamp(status.st_size, status.st_mtime_ns, file.sha256)
            if stamps.get(file.name) != stamp:
                _check_hash(spec, path, file, progress)
            fresh[file.name] = stamp
        if fresh != stamps:
            _write_atomically(folder / "verified.json", msgspec.json.encode(fresh))


def use_file(spec: ModelSpec, path: Path) -> ModelSpec:
    """The same model, its one file taken from `path` in place of its source."""
    (file,) = spec.files
    renamed = msgspec.structs.replace(file, name=path.name)
    folder = path.resolve().parent
    return msgspec.structs.replace(spec, source=f"file:{folder}", files=(renamed,))


def _model_files(
    spec: ModelSpec, folder: Path, weights_folder: Path, metadata: ModelMetadata
) -> ModelFiles:
    return ModelFiles(
        **msgspec.structs.asdict(metadata),
        id=spec.id,
        directory=folder,
        weights=_weights(spec, weights_folder),
        tokenizer=folder / "tokenizer.json",
    )


def _weights(spec: ModelSpec, folder: Path) -> Path:
    """The one GGUF file, or the folder of a safetensors model."""
    gguf = [file.name for file in spec.files if file.name.endswith(".gguf")]
    if len(gguf) > 1:
        raise UnsupportedModel(f"{spec.id}: GGUF split over {len(gguf)} files is not supported")
    return folder / gguf[0] if gguf else folder


def _write_metadata(spec: ModelSpec, weights_folder: Path, folder: Path) -> None:
    weights = _weights(spec, weights_folder)
    write: Callable[[Path, Path, str], ModelMetadata]
    if spec.is_encoder:
        write = tokenizer_files.write_from_encoder
    elif weights == weights_folder:
        write = tokenizer_files.write_from_directory
    else:
        write = tokenizer_files.write_from_gguf
    try:
        metadata = write(weights, folder, _weights_digest(spec))
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{spec.id}: {error}") from None
    installed = Installed(format=FORMAT, metadata=metadata)
    (folder / "model.json").write_bytes(msgspec.json.encode(installed))


def _weights_digest(spec: ModelSpec) -> str:
    return digest("".join(file.sha256 for file in spec.files).encode())


def _status(spec: ModelSpec, path: Path) -> os.stat_result:
    try:
        return path.stat()
    except FileNotFoundError:
        raise ModelCorrupt(f"{spec.id}: {path} is missing") from None


def _check_hash(spec: ModelSpec, path: Path, file: ModelFile, progress: Progress | None) -> None:
    sha256 = hash_file(path, progress)
    if sha256 != file.sha256:
        raise ModelCorrupt(
            f"{spec.id}: {path} is corrupt: SHA-256 {sha256[:16]}… "
            f"where the catalog says {file.sha256[:16]}…"
        )


def hash_file(path: Path, progress: Progress | None = None) -> str:
    """SHA-256 of a file, hex. Raises `OSError`."""
    sha256, done, size = hashlib.sha256(), 0, max(path.stat().st_size, 1)
    with path.open("rb") as file:
        while chunk := file.read(HASH_CHUNK):
            sha256.update(chunk)
            done += len(chunk)
            if progress:
                progress(f"checking {path.name}", min(done / size, 1.0))
    return sha256.hexdigest()


def _read_stamps(folder: Path) -> dict[str, Stamp]:
    """Stamps of earlier checks; none when there are none, or when they cannot be read."""
    try:
        data = (folder / "verified.json").read_bytes()
        return msgspec.json.decode(data, type=dict[str, Stamp])
    except (FileNotFoundError, msgspec.DecodeError):
        return {}


def _write_atomically(path: Path, data: bytes) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}.new")
    draft.write_bytes(data)
    os.replace(draft, path)


def _sync(folder: Path) -> None:
    """Have everything in a folder on disk, so that the rename after it never shows less."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
