"""llama.cpp's own HTTP server out of the `xllamacpp` wheel; run by the peer's own interpreter.

Answers one JSON line with its address once it serves, and ends with its standard input.
"""

import json
import sys

import xllamacpp


def main():
    path, threads, parallel, context = sys.argv[1], *map(int, sys.argv[2:5])
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = parallel * context
    params.n_parallel = parallel
    params.kv_unified = False
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.verbosity = -1
    server = xllamacpp.Server(params)
    sys.stdin.readline()
    print(json.dumps({"url": server.listening_address}), flush=True)
    sys.stdin.read()


main()
