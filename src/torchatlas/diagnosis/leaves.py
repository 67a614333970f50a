"""What is known of the tensors that a program trains, also after it has let go of them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import nn

from torchatlas.capturing.tensors import shape_of


@dataclass(eq=False)
class Leaf:
    """A tensor that gets gradients, or could."""

    name: str
    of_module: bool  # a parameter, and not a tensor of its own
    reference: weakref.ref[torch.Tensor]
    requires_grad: bool
    storage: int | None = None  # in the recording that ran when it was last looked at


class Leaves:
    """Knows them by themselves, weakly: the program's models live and die as they do alone."""

    def __init__(self) -> None:
        self._known: dict[int, Leaf] = {}  # by id, which another tensor may get after this one

    def of(self, tensor: torch.Tensor, roots: Collection[nn.Module]) -> Leaf:
        found = self._find(tensor)
        if found is None:
            self._learn(roots)
            found = self._find(tensor)
        if found is None:
            found = self._add(tensor, f"a leaf {list(shape_of(tensor))}", of_module=False)
        found.requires_grad = tensor.requires_grad
        return found

    def forget_storages(self) -> None:
        """Another recording numbers them anew."""
        for leaf in self._known.values():
            leaf.storage = None

    def _find(self, tensor: torch.Tensor) -> Leaf | None:
        found = self._known.get(id(tensor))
        return found if found is not None and found.reference() is tensor else None

    def _add(self, tensor: torch.Tensor, name: str, of_module: bool) -> Leaf:
        found = self._known[id(tensor)] = Leaf(name, of_module, weakref.ref(tensor), tensor.requires_grad)
        return found

    def _learn(self, roots: Collection[nn.Module]) -> None:
        """Parameters are called by their path in the model; after the class of the model if there are several models.

        All modules are looked for: one that is never called has parameters, too.
        """
        modules = [item for item in gc.get_objects() if issubclass(type(item), nn.Module) and "_modules" in vars(item)]
        inside = {id(child) for module in modules for child in module._modules.values()}
        tops = [module for module in modules if id(module) not in inside]
        called = [top for top in tops if any(module in roots for module in nn.Module.modules(top))]
        for top in tops:
            for name, parameter in nn.Module.named_parameters(top):  # not by their own way, which may do anything
                if self._find(parameter) is None:
                    self._add(parameter, name if called == [top] else f"{type(top).__name__}.{name}", of_module=True)
