"""Routing rules on the product's twin (`skerry_regions.twin`), and what they are compared on."""
