"""Work that may wait: Workers AI's queued requests and OpenAI's batches, on one queue."""
