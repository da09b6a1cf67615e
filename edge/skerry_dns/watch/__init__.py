"""Which regions are up, and how far they are from each other. Imports regions only."""
