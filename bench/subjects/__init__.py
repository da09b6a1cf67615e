"""What is measured: platforms, servers, peers, models, cases. May import measuring."""
