"""Weights as files hold them: GGUF and safetensors, read within bounds. May import the hall."""
