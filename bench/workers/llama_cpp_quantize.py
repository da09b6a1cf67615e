"""Requantise a GGUF file to Q4_0 with llama.cpp: IN OUT; run by the peer's own interpreter.

For speed alone: quantising what was quantised loses quality.
"""

import ctypes
import sys

import llama_cpp as llama

log = llama.llama_log_callback(lambda *_: None)
llama.llama_log_set(log, ctypes.c_void_p())
params = llama.llama_model_quantize_default_params()
params.ftype = llama.LLAMA_FTYPE_MOSTLY_Q4_0
params.allow_requantize = True
source, target = (path.encode() for path in sys.argv[1:])
sys.exit(llama.llama_model_quantize(source, target, ctypes.byref(params)))
