"""sentence-transformers as a benchmark worker; run by the peer's own interpreter.

The modules are those of all-MiniLM-L6-v2 (256 tokens, mean of all, length 1), the batches the
library's own.
"""

import json
import sys
import time

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules


def main(folder: str, threads: int) -> None:
    torch.set_num_threads(threads)
    transformer = modules.Transformer(folder, max_seq_length=256)
    pooling = modules.Pooling(transformer.get_embedding_dimension(), "mean")
    model = SentenceTransformer(modules=[transformer, pooling, modules.Normalize()], device="cpu")
    for line in sys.stdin:
        request = json.loads(line)
        start = time.perf_counter()
        vectors = model.encode(request["texts"], show_progress_bar=False)
        answer = {"seconds": time.perf_counter() - start}
        if request.get("vectors"):
            answer["vectors"] = vectors.tolist()
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
