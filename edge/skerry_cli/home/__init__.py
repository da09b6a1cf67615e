"""What a home keeps on disk, and what every way of starting needs of it. May import the hall."""
