"""A decoder on JAX: compiled programs of few shapes, and what runs them."""
