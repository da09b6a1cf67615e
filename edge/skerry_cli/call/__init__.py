"""Commands that call a model, and the queue of batches. May import home."""
