"""What the API says of itself and of its work: OpenAPI, lists, schemas, traces, usage.

Below app alone.
"""
