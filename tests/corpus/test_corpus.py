"""A recording of other people's models is what ran: every op, in order, in its module, with the same results.

One class per catalogue, because the workers of a parallel test run take a class as a whole.
"""

from __future__ import annotations

import gc
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from support import load_torchvision, load_transformers, sampled
from torch import nn

from corpus import Entry, differences, timm_models, torchvision_models, transformers_models, watch

TORCHVISION, TRANSFORMERS = torchvision_models.MODELS, transformers_models.MODELS


class TestTorchvision:
    def test_every_model_is_in_the_catalogue(self) -> None:
        float32 = {name for name, entry in TORCHVISION.items() if entry.trains}
        assert float32 == set(load_torchvision().models.list_models())

    # What building the int8 models and importing the fallback of roi_align say about themselves.
    @pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
    @pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor, torch.quantize_per_channel:UserWarning")
    @pytest.mark.filterwarnings("ignore:must run observer before calling calculate_qparams:UserWarning")
    @pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
    @pytest.mark.timeout(400)  # takes seconds, but on a busy machine two gigabytes are slow to get
    @pytest.mark.parametrize("entry", sampled(TORCHVISION.values(), 12), ids=str)
    def test_the_recording_is_what_ran(self, entry: Entry) -> None:
        gc.collect()  # the one before, if something of it is left: some are large
        assert differences(watch(entry)) == []


class TestTransformers:
    def test_there_are_more_than_sixty_architectures(self) -> None:
        known = load_transformers().CONFIG_MAPPING
        assert len({known[name] for name in TRANSFORMERS}) == len(TRANSFORMERS) > 60

    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # its own, at import
    @pytest.mark.parametrize("entry", sampled(TRANSFORMERS.values(), 4), ids=str)
    def test_the_recording_is_what_ran(self, entry: Entry) -> None:
        assert differences(watch(entry)) == []


class Pictures(nn.Module):
    """Takes pictures of one side, or of that and more, or needs values."""

    def __init__(self, side: int, more: bool = False, width: int = 1, reads: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)
        self.side, self.more, self.reads = side, more, reads
        self.default_cfg = {"input_size": (3, 224, 224), "fixed_input_size": not more}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        side = x.shape[-1]
        assert side >= self.side if self.more else side == self.side, f"a picture of {side}"
        return x.sum() * self.layer.weight.sum().item() if self.reads else x.sum() * self.layer.weight


def of_any_size_from_96() -> nn.Module:
    return Pictures(96, more=True)


def of_the_size_it_is_built_for(img_size: int = 224) -> nn.Module:
    assert img_size % 64 == 0 or img_size == 224
    return Pictures(img_size)


def of_one_size() -> nn.Module:
    return Pictures(224)


def that_needs_values() -> nn.Module:
    return Pictures(32, more=True, reads=True)


def large() -> nn.Module:
    return Pictures(32, width=10_001)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timm of five models in two modules: the real one is not installed where the tests run."""
    builders = [of_any_size_from_96, of_the_size_it_is_built_for, of_one_size, that_needs_values, large]
    by_name = {build.__name__: build for build in builders}
    modules = {"first": list(by_name)[:4], "second": list(by_name)[4:]}
    timm: Any = ModuleType("timm")
    timm.__spec__ = importlib.machinery.ModuleSpec("timm", None)
    timm.list_modules = lambda: list(modules)
    timm.list_models = lambda module: modules[module]
    timm.create_model = lambda name, pretrained, **changes: by_name[name](**changes)
    monkeypatch.setitem(sys.modules, "timm", timm)
    timm_models.smallest.cache_clear()


@pytest.mark.usefixtures("registry")
class TestTimm:
    def test_every_family_has_its_turn_before_any_has_a_second(self) -> None:
        assert [entry.name for entry in timm_models.entries()] == [
            "timm/of_any_size_from_96",
            "timm/large",
            "timm/of_the_size_it_is_built_for",
            "timm/of_one_size",
            "timm/that_needs_values",
        ]

    @pytest.mark.parametrize(
        ("name", "side", "changes"),
        [
            ("of_any_size_from_96", 96, {}),
            ("of_the_size_it_is_built_for", 64, {"img_size": 64}),
            ("of_one_size", 224, {}),
            ("that_needs_values", 224, {}),
        ],
    )
    def test_the_smallest_picture(self, name: str, side: int, changes: dict[str, int]) -> None:
        assert timm_models.smallest(name) == ((3, side, side), changes)
        model, (picture,), _ = timm_models.build(name)
        assert picture.shape == (2, 3, side, side)
        assert model(picture).device.type == "cpu"

    def test_large_models_are_left_out_before_they_are_built(self) -> None:
        with pytest.raises(timm_models.TooLarge, match="100 million parameters"):
            timm_models.build("large")
