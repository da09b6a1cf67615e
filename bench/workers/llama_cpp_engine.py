"""llama.cpp through llama-cpp-python's low-level batch API; run by the peer's own interpreter.

Separate KV streams per sequence (`kv_unified=False`): the unified setting costs llama.cpp about a
sixth at batch 8 and 32. Bare forward passes: no sampler, which favours the peer.
"""

import ctypes
import json
import sys
import time

import llama_cpp as llama

MAX_SEQUENCES = 33
CONTEXT_PER_SEQUENCE = 512


class Engine:
    def __init__(self, path, threads, contexts=CONTEXT_PER_SEQUENCE, sequences=MAX_SEQUENCES):
        self._log = llama.llama_log_callback(lambda *_: None)
        llama.llama_log_set(self._log, ctypes.c_void_p())
        llama.llama_backend_init()
        model_params = llama.llama_model_default_params()
        self.model = llama.llama_model_load_from_file(path.encode(), model_params)
        params = llama.llama_context_default_params()
        params.n_ctx = contexts * sequences
        params.n_batch = 2048
        params.n_ubatch = 512
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        self.context = llama.llama_init_from_model(self.model, params)
        self.memory = llama.llama_get_memory(self.context)
        self.batch = llama.llama_batch_init(2048, 0, 1)

    def run(self, token_ids, positions, sequences, wanted):
        batch = self.batch
        batch.n_tokens = len(token_ids)
        for i, (token, position, sequence) in enumerate(
            zip(token_ids, positions, sequences, strict=True)
        ):
            batch.token[i] = token
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = i in wanted
        code = llama.llama_decode(self.context, batch)
        if code:
            raise RuntimeError(f"llama_decode answered {code}")

    def prefill(self, token_ids):
        llama.llama_memory_clear(self.memory, True)
        count = len(token_ids)
        start = time.perf_counter()
        for first in range(0, count, 512):
            part = token_ids[first : first + 512]
            last = {len(part) - 1} if first + len(part) == count else set()
            self.run(part, range(first, first + len(part)), [0] * len(part), last)
        llama.llama_synchronize(self.context)
        return time.perf_counter() - start

    def decode(self, prompts, steps):
        llama.llama_memory_clear(self.memory, True)
        for sequence, prompt in enumerate(prompts):
            self.run(prompt, range(len(prompt)), [sequence] * len(prompt), {len(prompt) - 1})
        rows = list(range(len(prompts)))
        length = len(prompts[0])
        self.run([7] * len(rows), [length] * len(rows), rows, set(rows))
        llama.llama_synchronize(self.context)
        start = time.perf_counter()
        for step in range(1, steps + 1):
            self.run([7 + step] * len(rows), [length + step] * len(rows), rows, set(rows))
            llama.llama_get_logits(self.context)
        return time.perf_counter() - start


def main():
    start = time.perf_counter()
    engine = Engine(sys.argv[1], int(sys.argv[2]))
    loaded = time.perf_counter() - start
    answers = {
        "prefill": lambda request: {"seconds": engine.prefill(request["prompts"][0])},
        "decode": lambda request: {"seconds": engine.decode(request["prompts"], request["steps"])},
        "about": lambda _: {
            "load_seconds": loaded,
            "info": llama.llama_print_system_info().decode(),
        },
    }
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answers[request["op"]](request)), flush=True)


main()
