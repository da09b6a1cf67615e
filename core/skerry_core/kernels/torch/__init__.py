"""A decoder in Torch, on any device that Torch knows. May import models and below."""
