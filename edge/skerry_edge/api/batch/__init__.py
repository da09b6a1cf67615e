"""Batches of requests: files, queue, execution. May import api and what is below."""
