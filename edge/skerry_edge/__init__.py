"""The gateway: text in, text out. It holds no engine."""
