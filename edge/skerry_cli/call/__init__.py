"""Commands that ask a model, and the queue of batches. May import home."""
