"""Small models and functions, each named after the complaint or difficulty it stands for.

A new specimen is one decorated builder in the file of its theme.
"""

from zoo import control, gradients, images, memory, operators, sequences, structure, traffic
from zoo.specimen import ZOO, Specimen, leaves_of, loss_of, specimens, tensors_in

__all__ = ["ZOO", "Specimen", "leaves_of", "loss_of", "specimens", "tensors_in"]
THEMES = (images, sequences, structure, traffic, memory, control, gradients, operators)
