"""The control API and the API of machines over HTTP. The topmost room of control."""
