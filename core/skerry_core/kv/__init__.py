"""KV outside of a pool: its canonical form, and the tier of files. May import the hall."""
