"""`python -m bench.gpu_profile --json FILE`: where the time of a step goes, kernel by kernel.

Decoding of 1, 64 and 200 rows, sampled as a chat is, and a prompt in one step, through torch's
profiler: for each kernel its time in a step, its share of the time in which anything ran, how often
it is launched in a step and a layer, and how long nothing ran before it. Beside them what a step
takes without the profiler, what of that nothing ran, and what the host computes for it. `--dry`
runs the same code in tiny shapes, where operators stand for kernels.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from bench.device.gpu_program import Part, Program, choose_device, run

if TYPE_CHECKING:
    from bench.device.gpu_subject import Subject


def _parts(is_dry: bool) -> tuple[dict[str, str], Sequence[Part]]:
    choose_device(is_dry=is_dry)
    from bench.device.gpu_subject import opened

    subject = opened(is_dry=is_dry)
    return subject.describe(), parts_of(subject)


def parts_of(subject: Subject) -> list[Part]:
    from bench.device.gpu_profiles import profile_decode, profile_prefill

    rows = sorted({*subject.sizes.batches, subject.sizes.streams})
    parts = [
        Part(f"decode, {count} rows", 30, partial(profile_decode, subject, count)) for count in rows
    ]
    return [*parts, Part("prefill", 30, partial(profile_prefill, subject))]


PROGRAM = Program("bench.gpu_profile", __doc__, 280.0, _parts)

if __name__ == "__main__":
    sys.exit(run(PROGRAM))
