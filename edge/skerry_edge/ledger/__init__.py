"""What is kept: usage, answers, batches, files. May import gate, telemetry and the hall."""
