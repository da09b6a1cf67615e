"""Installed models: pulled once, checked always, opened in milliseconds.

    SKERRY_HOME/models/
        @cf+huggingfacetb+smollm2-135m-instruct/   one folder per model, put in place by one rename
            SmolLM2-135M-Instruct.Q4_1.gguf        absent for a `file:` source: used in place
            tokenizer.json  tokenizer_config.json  made once from the weights' own tokenizer
            model.json                             `ModelMetadata`
            verified.json                          what the SHA-256 of each file was computed over
        .pulling/                                  unfinished installations
        .blobs/                                    downloads by their SHA-256, and parts of them
        .locks/                                    one per model and blob, so that no pulls meet

A file is opened only when it is the one of the catalog: its size always, its SHA-256 when the file
changed since it was last computed.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from skerry_regions.models import tokenizer_files
from skerry_regions.models.blobs import Blobs, held_lock
from skerry_regions.models.catalog import ModelSpec
from skerry_regions.models.integrity import check_files
from skerry_regions.models.model_files import ModelFiles, ModelMetadata, digest
from skerry_regions.models.problems import ModelCorrupt, ModelNotInstalled, UnsupportedModel
from skerry_regions.models.sources import Hub, Progress, local_folder

FORMAT: Final = 1  # of model.json and of the tokenizer conversion; another one is made again


class Installed(Struct, frozen=True, kw_only=True):
    """Content of `model.json`."""

    format: int
    metadata: ModelMetadata
    template: str = ""  # digest of the catalog's own chat template; nothing when it has none


class ModelStore:
    """The models under one SKERRY_HOME. Safe to use from several processes at once."""

    def __init__(self, home: Path, *, hub: Hub | None = None) -> None:
        self._root = home / "models"
        self._hub = hub or Hub()
        self.blobs = Blobs(self._root)

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
        """Return the files of an installed model, checked.

        Reads no large file unless it changed. Raises `ModelNotInstalled` or `ModelCorrupt`.
        """
        return self._checked(spec, progress, force=False)

    def verify(self, spec: ModelSpec, progress: Progress | None = None) -> ModelFiles:
        """Open it as `open` does, with the SHA-256 of every file computed again."""
        return self._checked(spec, progress, force=True)

    def _checked(self, spec: ModelSpec, progress: Progress | None, *, force: bool) -> ModelFiles:
        folder = self._folder(spec)
        weights_folder = local_folder(spec) or folder
        installed = self._read_installed(spec, folder)
        check_files(spec, weights_folder, folder, progress, force=force)
        return _model_files(spec, folder, weights_folder, installed.metadata)

    def is_installed(self, spec: ModelSpec) -> bool:
        """Return whether the model was installed, without looking at its files."""
        return (self._folder(spec) / "model.json").exists()

    def remove(self, spec: ModelSpec) -> bool:
        """Delete what was installed of a model; files used in place stay. False: there was nothing.

        A process that serves it keeps its open files.
        """
        with self._lock(spec, lambda what, share: None):
            folder, pulling = self._folder(spec), self._root / ".pulling" / self._folder(spec).name
            was_there = folder.exists() or pulling.exists()
            for each in (folder, pulling):
                shutil.rmtree(each, ignore_errors=True)
        self.blobs.sweep(time.time())
        return was_there

    # --- installing

    def _install(self, spec: ModelSpec, progress: Progress) -> ModelFiles:
        pulling = self._root / ".pulling" / self._folder(spec).name
        pulling.mkdir(parents=True, exist_ok=True)
        for leftover in filter(Path.is_dir, list(pulling.iterdir())):
            shutil.rmtree(leftover)  # scratch of a pull that was killed
        weights_folder = local_folder(spec)
        if weights_folder is None:
            weights_folder = pulling
            if not self._take_over(spec, pulling):
                from skerry_regions.models.fetch import fetch  # an HTTP client

                fetch(spec, pulling, self._hub, self.blobs, progress)
        try:
            check_files(spec, weights_folder, pulling, progress, force=True)
        except ModelCorrupt:
            shutil.rmtree(pulling)  # going on after wrong bytes would never end well
            for file in spec.files:
                self.blobs.forget(file.sha256)
            raise
        progress("converting the tokenizer", 0.0)
        _write_metadata(spec, weights_folder, pulling)
        progress("converting the tokenizer", 1.0)
        _sync(pulling)
        self._put_in_place(pulling, self._folder(spec))
        return self.open(spec)

    def _take_over(self, spec: ModelSpec, pulling: Path) -> bool:
        """Link the files of an earlier installation, if it has them all: they are checked next."""
        folder = self._folder(spec)
        for file in spec.files:
            path = folder / file.name
            if not (path.is_file() and path.stat().st_size == file.size):
                return False
        for file in spec.files:
            (pulling / file.name).unlink(missing_ok=True)
            (pulling / file.name).parent.mkdir(exist_ok=True)
            os.link((folder / file.name).resolve(), pulling / file.name)
        return True

    def _put_in_place(self, made: Path, folder: Path) -> None:
        """Rename the finished folder; a reader sees the old model, the new one, or none."""
        old = made.with_name(made.name + ".old")
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        made.rename(folder)
        _sync_folder(self._root)
        shutil.rmtree(old, ignore_errors=True)

    def _lock(self, spec: ModelSpec, progress: Progress) -> AbstractContextManager[None]:
        """Return the model's lock."""
        locks = self._root / ".locks"
        locks.mkdir(parents=True, exist_ok=True)
        waiting = "waiting for another pull of this model"
        return held_lock(locks / self._folder(spec).name, waiting, progress)

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
        if installed.template != _template_digest(spec):
            raise ModelNotInstalled(f"{spec.id} is installed with another chat template: {how}")
        return installed


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
    """Return the one GGUF file, or the folder of a safetensors model."""
    gguf = [file.name for file in spec.files if file.name.endswith(".gguf")]
    if len(gguf) > 1:
        raise UnsupportedModel(f"{spec.id}: GGUF split over {len(gguf)} files is not supported")
    return folder / gguf[0] if gguf else folder


def _write_metadata(spec: ModelSpec, weights_folder: Path, folder: Path) -> None:
    weights = _weights(spec, weights_folder)
    weights_digest, template = _weights_digest(spec), spec.chat_template
    try:
        if spec.is_encoder:
            metadata = tokenizer_files.write_from_encoder(weights, folder, weights_digest)
        elif weights == weights_folder:
            metadata = tokenizer_files.write_from_directory(
                weights, folder, weights_digest, template
            )
        else:
            metadata = tokenizer_files.write_from_gguf(weights, folder, weights_digest, template)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{spec.id}: {error}") from None
    installed = Installed(format=FORMAT, metadata=metadata, template=_template_digest(spec))
    (folder / "model.json").write_bytes(msgspec.json.encode(installed))


def _template_digest(spec: ModelSpec) -> str:
    return "" if spec.chat_template is None else digest(spec.chat_template.encode())


def _weights_digest(spec: ModelSpec) -> str:
    return digest("".join(file.sha256 for file in spec.files).encode())


def _sync(folder: Path) -> None:
    """Have everything in a folder on disk, so that the rename after it never shows less."""
    for path in folder.iterdir():
        if path.is_dir():
            _sync(path)
            continue
        with path.open("rb") as file:
            os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
