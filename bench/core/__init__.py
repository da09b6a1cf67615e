"""What an engine computes, and what becomes of a step: phases, shapes, stages, drafts, vectors."""
