"""llama.cpp through llama-cpp-python's low-level batch API; run by the peer's own interpreter.

Separate KV streams per sequence (`kv_unified=False`): the unified setting costs llama.cpp about a
sixth at batch 8 and 32. Bare forward passes: no sampler, which favours the peer. Rows decode other
tokens than their neighbours, as streams do: experts are chosen by tokens.

FILE THREADS [SEQUENCES TOKENS LONGEST]: sequences of so many tokens each, and one longer one.
"""

# pyright: basic, reportMissingImports=false
import ctypes
import json
import sys
import time

import llama_cpp as llama

sizes = [int(each) for each in sys.argv[3:]] or [33, 512, 4608]
MANY, LONG = (sizes[0], sizes[1]), (1, sizes[2])  # sequences, and tokens of context each


class Engine:
    def __init__(self, path, threads):
        self._log = llama.llama_log_callback(lambda *_: None)
        llama.llama_log_set(self._log, ctypes.c_void_p())
        llama.llama_backend_init()
        model_params = llama.llama_model_default_params()
        self.model = llama.llama_model_load_from_file(path.encode(), model_params)
        self.contexts = {size: self.make_context(threads, *size) for size in (MANY, LONG)}
        self.batch = llama.llama_batch_init(2048, 0, 1)
        self.held = 0  # tokens of one prompt that the long context holds

    def make_context(self, threads, sequences, tokens):
        params = llama.llama_context_default_params()
        params.n_ctx = tokens * sequences
        params.n_batch = 2048
        params.n_ubatch = 512
        params.n_seq_max = sequences
        params.n_threads = params.n_threads_batch = threads
        params.kv_unified = False
        return llama.llama_init_from_model(self.model, params)

    def use(self, prompts, steps):
        """Choose the context for these prompts, and empty it unless it holds the one, long prompt.

        Which tokens it holds makes no difference to how long a step takes.
        """
        count = len(prompts[0])
        size = MANY if count + steps + 2 <= MANY[1] else LONG
        self.context = self.contexts[size]
        memory = llama.llama_get_memory(self.context)
        is_held = steps > 0 and size == LONG and self.held >= count
        llama.llama_memory_seq_rm(memory, -1, count if is_held else 0, -1)
        if size == LONG:
            self.held = count
        return is_held

    def compute(self, sequence, token_ids):
        count = len(token_ids)
        for first in range(0, count, 512):
            part = token_ids[first : first + 512]
            last = {len(part) - 1} if first + len(part) == count else set()
            self.run(part, range(first, first + len(part)), [sequence] * len(part), last)

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
        self.use([token_ids], 0)
        start = time.perf_counter()
        self.compute(0, token_ids)
        llama.llama_synchronize(self.context)
        return time.perf_counter() - start

    def decode(self, prompts, steps):
        if not self.use(prompts, steps):
            for sequence, prompt in enumerate(prompts):
                self.compute(sequence, prompt)
        rows = list(range(len(prompts)))
        length = len(prompts[0])

        def step(number):
            tokens = [(7919 * number + 104_729 * row) % 30_000 + 7 for row in rows]
            self.run(tokens, [length + number] * len(rows), rows, set(rows))

        step(0)
        llama.llama_synchronize(self.context)
        start = time.perf_counter()
        for number in range(1, steps + 1):
            step(number)
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
