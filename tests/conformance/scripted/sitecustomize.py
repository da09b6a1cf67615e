"""Has the toy model say what a script has, one text for each result of a tool in the prompt.

Python imports this module at its start where its folder is on `PYTHONPATH`, as the tests of coding
agents put it. All but what the model says is the platform's own: tokens, templates, calls, cache.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

SCRIPT = os.environ.get("SKERRY_TEST_SCRIPT", "")

if SCRIPT and "up" in sys.argv[1:]:
    import numpy as np

    from skerry_core.batch import Float32, Int64
    from skerry_core.runners.toy import ToyRunner

    script = json.loads(Path(SCRIPT).read_text())
    START, END = script["start"], script["end"]  # ids around a turn
    SPELLINGS = [bytes.fromhex(each) for each in script["spellings"]]  # of each token
    OF_BYTE = {each: id for id, each in reversed(list(enumerate(SPELLINGS))) if len(each) == 1}
    TEXTS: list[str] = script["texts"]
    OPENING, RESULT = b"assistant\n", b"<tool_response>\n"

    def spelled(ids: Int64) -> bytes:
        """Return the text of tokens."""
        return b"".join(SPELLINGS[each] for each in ids.tolist())

    def score(self: ToyRunner, context: Int64, logits: Float32) -> None:
        """Write logits f32[V] of which one token alone has a chance."""
        token, starts = END, np.flatnonzero(context == START)
        if len(starts):  # else it is the platform's own canary
            said = spelled(context[starts[-1] + 1 :]).removeprefix(OPENING)
            turn = spelled(context[: starts[-1]]).count(RESULT)
            text = TEXTS[min(turn, len(TEXTS) - 1)].encode()
            token = OF_BYTE[text[len(said) : len(said) + 1]] if len(said) < len(text) else END
        logits[:] = -1e4
        logits[token] = 0.0

    ToyRunner._score = score  # type: ignore[method-assign]
