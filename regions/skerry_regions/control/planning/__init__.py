"""From what is wanted to what is to be done. Pure. May import desired."""
