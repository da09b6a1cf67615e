"""A copy of a safetensors model whose bf16 matrices take a quarter less, to send and to load."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from skerry_core.models.weight_file import weight_files
from skerry_core.weights.bf12_files import QUANTIZATION, write_bf12
from skerry_core.weights.files import map_file, read_json_file
from skerry_core.weights.safetensors import read_safetensors
from skerry_core.weights.tensors import WeightsError

_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"  # says which tensors a file has, which changes


def compress(source: Path, target: Path, progress: Callable[[float], None]) -> tuple[int, int]:
    """Write the model of folder `source` to the new folder `target`, its bf16 matrices in BF12.

    Every weight keeps its bits. `progress` is called with the share that is done. Returns the bytes
    of the weights before and after; on failure nothing is left behind. Raises WeightsError unless
    there are plain safetensors in the one folder, and nothing at the other; OSError.
    """
    files = weight_files(source)
    if files[0].suffix != ".safetensors" or not source.is_dir():
        raise WeightsError(f"{source}: not a folder of safetensors files")
    config = read_json_file(source / _CONFIG)
    if "quantization_config" in config:
        raise WeightsError(f"{source / _CONFIG}: the model is quantised already")
    if target.exists():
        raise WeightsError(f"{target}: exists already")
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    draft.mkdir(parents=True)
    try:
        for each in source.iterdir():
            if each.is_file() and each.suffix != ".safetensors" and each.name != _INDEX:
                shutil.copyfile(each, draft / each.name)
        config["quantization_config"] = QUANTIZATION
        (draft / _CONFIG).write_text(json.dumps(config, indent=2) + "\n")
        before, done = sum(each.stat().st_size for each in files), 0
        for each in files:
            for size in write_bf12(draft / each.name, read_safetensors(map_file(each), str(each))):
                done += size
                progress(done / before)
        after = sum((draft / each.name).stat().st_size for each in files)
        draft.rename(target)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return before, after
