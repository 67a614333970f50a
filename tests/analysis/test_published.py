"""Multiply-adds and parameters, against torchvision's published tables and the closed form of Llama training steps."""

from __future__ import annotations

import importlib.util
import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from support import GIANTS, giant_llama, load_torchvision, sampled

import torchatlas as atlas
from benchmarks.published import Case, Published, measured, published
from torchatlas.analysis.node_work import count

# -- torchvision -------------------------------------------------------------------------------------------------------

# One of each family, the smaller ones; all the others are marked slow.
QUICK = """
    alexnet convnext_tiny deeplabv3_mobilenet_v3_large densenet121 efficientnet_b0 efficientnet_v2_s fcn_resnet50
    googlenet inception_v3 lraspp_mobilenet_v3_large maxvit_t mc3_18 mnasnet1_0 mobilenet_v2 mobilenet_v3_small
    mvit_v1_b quantized_resnet18 r2plus1d_18 r3d_18 regnet_x_400mf regnet_y_16gf resnet18 resnet50 resnext50_32x4d s3d
    shufflenet_v2_x1_0 squeezenet1_1 swin3d_t swin_t swin_v2_t vgg11_bn vgg16 vit_b_16 vit_b_32 wide_resnet50_2
""".split()  # noqa: SIM905  # a table


if importlib.util.find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed", allow_module_level=True)


def cases() -> dict[Case, list[Published]]:
    found = defaultdict(list)
    for case, line in published():
        found[case].append(line)
    return found


CASES = cases()
PARAMETERS = [pytest.param(case, marks=() if case.model in QUICK else pytest.mark.slow, id=str(case)) for case in CASES]


def test_all_published_figures_are_looked_at() -> None:
    lines = [line for lines in CASES.values() for line in lines]
    quantized = [line for line in lines if "Quantized" in line.weight]
    assert len(lines) - len(quantized) == 226  # of torchvision 0.28, the default of each model under both its names
    assert len({line.weight for line in lines}) == len(lines)


@pytest.mark.parametrize("case", PARAMETERS)
def test_torchvision_publishes_the_same_figures(case: Case) -> None:
    macs, parameters = measured(case)
    assert [line.weight for line in CASES[case] if not line.agrees(macs, parameters)] == []


FUSED = ["vit_b_16", "maxvit_t", "mvit_v2_s", "swin_v2_t", "swin_t", "swin3d_t", "resnet18"]


@pytest.mark.parametrize("model", sampled(FUSED, 3))
def test_fast_paths_cost_the_same(model: str) -> None:
    """Without gradients torch takes fused operations where it has them."""
    case = next(case for case in CASES if case.model == model)
    macs, parameters = measured(case, grad=False)
    assert [line.weight for line in CASES[case] if not line.agrees(macs, parameters)] == []


def test_a_real_run_costs_the_same_as_one_on_fake_tensors() -> None:
    """On the CPU, where attention is one operation and a whole layer may be."""
    models = load_torchvision().models
    for name, shape in (("resnet18", (1, 3, 64, 64)), ("vit_b_32", (1, 3, 224, 224)), ("swin_t", (1, 3, 64, 64))):
        case = Case(name, (("weights", None),), shape)
        model = models.get_model(name, weights=None).eval()
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                graph = atlas.capture(model, torch.zeros(shape))
            assert count(graph).macs.clip(0).sum() == measured(case, grad)[0]


def test_a_builder_that_looks_at_what_it_draws_still_builds_without_weights() -> None:
    """nn.init.trunc_normal_ draws again what is too large: fake tensors cannot tell, the meta device need not."""
    case = next(case for case in CASES if case.model == "convnext_tiny")
    graph = atlas.capture(case.build, torch.empty(case.shape, device="meta"), fake=True)
    assert count(graph).macs.sum() == measured(case)[0]


def test_a_builder_that_works_out_sizes_with_tensors_cannot_build_without_values() -> None:
    models = load_torchvision().models
    with pytest.raises(atlas.errors.CaptureError, match="reads the values of its tensors"):
        atlas.capture(lambda: models.regnet_x_400mf(weights=None), torch.empty(1, 3, 224, 224), fake=True)


def test_a_figure_that_differs_is_noticed() -> None:
    assert not Published("", 1.814, 5).agrees(1_814_500_001, 5)
    assert not Published("", 1.814, 5).agrees(1_814_073_344, 6)
    assert Published("", 1.814, 5).agrees(1_814_073_344, 5)


# -- Llama -------------------------------------------------------------------------------------------------------------

TOKENS = 2048


@dataclass(frozen=True)
class Llama:
    """The sizes of a model, and what they make of one training step on one sequence of TOKENS tokens."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int = 0
    vocab_size: int = 32000

    @property
    def forward(self) -> dict[str, int]:
        width, layers, heads = self.hidden_size, self.num_hidden_layers, self.num_attention_heads
        head = width // heads
        narrow = head * (self.num_key_value_heads or heads)
        return {
            "q_proj": layers * TOKENS * width * width,
            "k_proj": layers * TOKENS * width * narrow,
            "v_proj": layers * TOKENS * width * narrow,
            "o_proj": layers * TOKENS * width * width,
            "gate_proj": layers * TOKENS * width * self.intermediate_size,
            "up_proj": layers * TOKENS * width * self.intermediate_size,
            "down_proj": layers * TOKENS * self.intermediate_size * width,
            "lm_head": TOKENS * width * self.vocab_size,
            "self_attn": layers * heads * TOKENS * TOKENS * head * 2,  # scores, and the values they weigh
        }

    @property
    def backward(self) -> dict[str, int]:
        """Towards the input and towards the weight; attention makes its scores again: 5 products for 2."""
        twice = {name: 2 * macs for name, macs in self.forward.items()}
        return {**twice, "self_attn": self.forward["self_attn"] * 5 // 2}


def macs_by_module(graph: atlas.Graph) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    macs = count(graph).macs
    for number in macs.nonzero()[0].tolist():
        node = graph.nodes[number]
        found[node.phase][re.sub(r".*\.", "", node.scope.path)] += int(macs[number])
    return {phase: dict(parts) for phase, parts in found.items()}


@pytest.mark.parametrize("size", ["7B", pytest.param("70B", marks=pytest.mark.slow)])
def test_a_training_step_of_a_llama_is_its_closed_form(size: str) -> None:
    tokens = torch.zeros(1, TOKENS, dtype=torch.long)
    options: dict[str, Any] = {"loss": lambda result: result.loss, "optimizer": torch.optim.AdamW, "fake": True}
    graph = atlas.capture(lambda: giant_llama(size), input_ids=tokens, labels=tokens, **options)
    llama = Llama(**GIANTS[size])
    assert macs_by_module(graph) == {"forward": llama.forward, "backward": llama.backward}
    assert count(graph).uncosted == {}
