"""The statements that random programs are made of: each is a line or block of Python that runs in the state given.

A rule looks at the tensors, modules and optimizers there are (`Scene`) and returns the text of a statement, or None
where it has nothing to work on. Rules are chosen in proportion to their weight. What a statement may name beside its
variables stands in DEFINITIONS. A new rule is one decorated function in tensors.py or training.py.
"""

from statements.definitions import DEFINITIONS
from statements.scene import BEFORE, RULES, TRAINING, WEIGHTS, Scene
from statements.tensors import matrix
from statements.training import module, optimizer

__all__ = ["BEFORE", "DEFINITIONS", "RULES", "TRAINING", "WEIGHTS", "Scene", "matrix", "module", "optimizer"]
