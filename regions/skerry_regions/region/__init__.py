"""A region as the edge sees it, local or remote: attempts, placing, directory. The topmost room."""
