"""Which models there are, where they come from, and their files here. Imports the hall only."""
