"""Copies of what a home keeps to NATS servers, and back: each store as one end of one."""
