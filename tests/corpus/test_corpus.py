"""A recording of other people's models is what ran: every op, in order, in its module, with the same results.

One class per catalogue, because the workers of a parallel test run take a class as a whole.
"""

from __future__ import annotations

import gc

import pytest
from support import load_torchvision, load_transformers

from corpus import Entry, differences, torchvision_models, transformers_models, watch

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
    @pytest.mark.parametrize("entry", TORCHVISION.values(), ids=str)
    def test_the_recording_is_what_ran(self, entry: Entry) -> None:
        gc.collect()  # the one before, if something of it is left: some are large
        assert differences(watch(entry)) == []


class TestTransformers:
    def test_there_are_more_than_sixty_architectures(self) -> None:
        known = load_transformers().CONFIG_MAPPING
        assert len({known[name] for name in TRANSFORMERS}) == len(TRANSFORMERS) > 60

    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # its own, at import
    @pytest.mark.parametrize("entry", TRANSFORMERS.values(), ids=str)
    def test_the_recording_is_what_ran(self, entry: Entry) -> None:
        assert differences(watch(entry)) == []
