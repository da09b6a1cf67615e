"""What an edge counts and traces. May import the hall."""
