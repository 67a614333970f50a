"""Every model of timm's registry, with random weights and the smallest input it takes.

timm is no dependency: MODELS is empty without it. `pip install --no-deps timm` is enough beside the tests' own
packages; it must not bring a torch of its own.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from functools import cache, partial
from itertools import chain, zip_longest
from typing import Any

import torch
from support import load_torchvision
from torch import nn

from corpus import Call, Entry

PREFIX = "timm/"  # torchvision has models of the same names
SIDES = (*range(32, 257, 32), 288, 320, 384, 448, 512)
BATCH = 2  # batch norm trains on two pixels or more
MOST_PARAMETERS = 100_000_000  # a proof of a training step holds ten copies of them: 4 GB


class TooLarge(Exception):
    """The model is left out."""


def families() -> dict[str, list[str]]:
    """The names of all models by the module of timm that defines them."""
    if importlib.util.find_spec("timm") is None:
        return {}
    load_torchvision()  # timm imports it, and it does not import where its operators are missing
    timm = importlib.import_module("timm")
    modules = {module: timm.list_models(module=module) for module in timm.list_modules()}
    return {module: [PREFIX + name for name in names] for module, names in modules.items()}


def rounds() -> Iterator[str]:
    """The first model of every family, then the second of each, and so on: a run that is cut short is a broad one."""
    return (name for name in chain.from_iterable(zip_longest(*families().values())) if name is not None)


def build(name: str) -> Call:
    size, changes = smallest(name)
    return created(name, **changes), (torch.randn(BATCH, *size),), {}


def created(name: str, **changes: Any) -> nn.Module:
    model: nn.Module = importlib.import_module("timm").create_model(name, pretrained=False, **changes)
    return model


@cache
def smallest(name: str) -> tuple[tuple[int, ...], dict[str, Any]]:
    """The size of the smallest picture that the model trains on, and what it must be built with for that.

    Sizes are tried on the meta device, where nothing is computed. Where none is taken there, the model's own is used.
    """
    with torch.device("meta"):
        model = created(name)
        settings: Any = model.default_cfg
        count = sum(parameter.numel() for parameter in model.parameters())
        if count > MOST_PARAMETERS:
            raise TooLarge(f"more than {MOST_PARAMETERS // 10**6} million parameters")
        channels, *own = settings["input_size"]
        for side in (side for side in SIDES if side < own[0]):
            picture = torch.empty(BATCH, channels, side, side)
            if takes(model, picture):
                return (channels, side, side), {}
            if settings.get("fixed_input_size") and takes_as_built(name, picture):
                return (channels, side, side), {"img_size": side}
    return (channels, *own), {}


def takes_as_built(name: str, picture: torch.Tensor) -> bool:
    """Whether the model can be built for pictures of this size, and takes them then."""
    try:
        model = created(name, img_size=picture.shape[-1])
    except Exception:  # no such argument, or no such size: each model says so in its own way
        return False
    return takes(model, picture)


def takes(model: nn.Module, picture: torch.Tensor) -> bool:
    try:
        model.train()(picture)
        model.eval()(picture)
    except Exception:  # a size that does not fit ends in any of a dozen exceptions
        return False
    return True


def entries() -> Iterator[Entry]:
    for name in rounds():
        yield Entry(name, partial(build, name.removeprefix(PREFIX)))


MODELS = {entry.name: entry for entry in entries()}
