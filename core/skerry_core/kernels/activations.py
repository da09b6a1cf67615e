"""Activations: their order, where compiled code wants a number, and their constants."""

from __future__ import annotations

import math
from typing import get_args

from skerry_core.config import Activation

ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)
GELU_SLOPE = math.sqrt(2 / math.pi)  # tanh's approximation: x / 2 * (1 + tanh(a * (x + b * x^3)))
GELU_CUBIC = 0.044715
CLAMP = 7.0  # of gates from above, of what they gate from both sides (gpt-oss)
CLAMPED_SLOPE = 1.702
