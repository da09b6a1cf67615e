"""Has nodes of the toy model sleep as long as a step of a GPU would take, by a law.

Python imports this module at its start where its folder is on `PYTHONPATH`:
`bench.routing.twin` puts it there. `SKERRY_BENCH_LAW`: seconds for a step, a prompt token, a pair,
a stream, a context token.
"""

from __future__ import annotations

import os
import sys
import time

LAW = os.environ.get("SKERRY_BENCH_LAW", "")

if LAW and "node" in sys.argv[1:3]:
    import numpy as np

    from skerry_core.batch import ForwardBatch, StepResult
    from skerry_core.config import EngineConfig
    from skerry_core.runners.toy import ToyRunner

    COEFFICIENTS = np.array([float(each) for each in LAW.split(",")])
    execute = ToyRunner.execute
    MAX_DRAFT = EngineConfig().max_draft_tokens

    def slow(self: ToyRunner, batch: ForwardBatch) -> StepResult:
        """Compute a batch, and return when the law says."""
        began = time.perf_counter()
        result = execute(self, batch)
        counts = np.diff(batch.query_start)
        first = batch.positions[batch.query_start[:-1]].astype(np.float64)
        prompts = counts > 1 + MAX_DRAFT  # a stream has its drafts behind its token
        new = float(counts[prompts].sum())
        pairs = float((counts * (first + (counts + 1) / 2))[prompts].sum())
        context = float((first[~prompts] + 1).sum())
        work = np.array([1.0, new, pairs, float((~prompts).sum()), context])
        time.sleep(max(float(COEFFICIENTS @ work) - (time.perf_counter() - began), 0.0))
        return result

    ToyRunner.execute = slow  # type: ignore[method-assign]
