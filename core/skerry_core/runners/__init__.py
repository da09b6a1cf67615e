"""Runners: one step of a model on one kind of device, behind the `ModelRunner` protocol."""
