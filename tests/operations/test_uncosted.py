"""No operation is without a cost: of the zoo, of torchvision and transformers models, of all that ATen has."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterable
from pathlib import Path

import children
import pytest
import torch
from corpus import Entry, quick_numbers, seed
from corpus import loss_of as ramp_of
from corpus.torchvision_models import MODELS as TORCHVISION
from corpus.transformers_models import MODELS as TRANSFORMERS
from operations.costing import declare_operators
from support import sampled
from torch import Tensor
from torch.optim import SGD, AdamW, Optimizer
from zoo import ZOO, Specimen, leaves_of, loss_of

import torchatlas as atlas
from torchatlas.analysis.node_work import count
from torchatlas.graph import Graph, OperationType
from torchatlas.graph.columns import Operation
from torchatlas.operations import operation_type
from torchatlas.operations.formulas import formula_for


def uncosted(graph: Graph) -> dict[str, int]:
    counts = count(graph)
    assert len(graph.where(kind="op")) > 0
    for column in (counts.elementwise_flops, counts.bytes_read, counts.bytes_written, counts.parallelism):
        assert (column >= (-1 if counts.uncosted else 0)).all()
    return counts.uncosted


def optimizers(leaves: list[Tensor]) -> Iterable[Optimizer]:
    """One by one, in lists and fused, as far as they are for such gradients."""
    dense = all(leaf.grad is None or leaf.grad.layout is torch.strided for leaf in leaves)
    real = all(leaf.is_floating_point() for leaf in leaves)
    yield SGD(leaves, lr=0.1, momentum=0.9 if dense else 0.0, foreach=False)
    if dense:
        yield SGD(leaves, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1, foreach=True)
        yield AdamW(leaves, foreach=False)
        yield AdamW(leaves, amsgrad=True, foreach=True)
    if dense and real:
        yield AdamW(leaves, fused=True)


@pytest.mark.parametrize("entry", ZOO, ids=str)
def test_of_the_zoo_with_backward_and_optimizers(entry: Specimen) -> None:
    model, args, kwargs = entry.build()
    with atlas.recording() as rec:
        outputs = model(*args, **kwargs)
        if entry.trains:
            loss_of(outputs).backward()
            leaves = [leaf for leaf in leaves_of(model, args, kwargs).values() if leaf.grad is not None]
            for optimizer in optimizers(leaves) if leaves else ():
                optimizer.step()
    assert uncosted(rec.graph) == {}


# Of different making: depthwise, shuffled, dense, windowed, in three dimensions, with boxes to suppress.
SMALL = "densenet121 efficientnet_b0 googlenet mobilenet_v3_small raft_small shufflenet_v2_x0_5 squeezenet1_0"
LARGE = """
convnext_tiny fcn_resnet50 maskrcnn_resnet50_fpn maxvit_t mc3_18 mvit_v2_s ssdlite320_mobilenet_v3_large swin_v2_t
vit_b_32
"""
SOME_OF_TORCHVISION = [*SMALL.split(), *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE.split())]
SOME_OF_TRANSFORMERS = """
albert bart beit bert big_bird bloom canine clip convnextv2 deberta-v2 dinov2 distilbert electra falcon gemma2 gpt2
gpt_neox gptj led llama longformer mamba mixtral mobilebert opt phi3 qwen3_moe roberta rwkv segformer t5 vit wav2vec2
whisper xlnet
"""
# What some of them do when they are imported.
scripted = pytest.mark.filterwarnings("ignore:`torch.jit.script(_method)?` is deprecated")


def step(entry: Entry) -> Graph:
    gc.collect()  # the model before this one
    with entry.world():
        seed()
        with quick_numbers():
            model, args, kwargs = entry.build()
        with atlas.recording(model) as rec:
            ramp_of(model(*args, **kwargs)).backward()
        graph: Graph = rec.graph
        return graph


@scripted
@pytest.mark.parametrize("name", SOME_OF_TORCHVISION)
def test_of_torchvision_models(name: str) -> None:
    assert uncosted(step(TORCHVISION[name])) == {}


@scripted
@pytest.mark.parametrize("name", sampled(SOME_OF_TRANSFORMERS.split(), 5))
def test_of_transformers_models(name: str) -> None:
    assert uncosted(step(TRANSFORMERS[name])) == {}


def test_thirty_architectures_are_thirty() -> None:
    assert len(set(SOME_OF_TRANSFORMERS.split())) >= 30


# -- names -------------------------------------------------------------------------------------------------------------

WITHOUT_WORK = """
_backward _cslt_sparse_mm_search _cufft_clear_plan_cache _cufft_get_plan_cache_max_size _cufft_get_plan_cache_size
_cufft_set_plan_cache_max_size _foobar _nnpack_available _print _propagate_xla_data _use_cudnn_ctc_loss
_use_cudnn_rnn_flatten_weight _use_miopen_ctc_loss get_gradients is_vulkan_available
"""  # questions about the build, plan caches, and ways into the autograd engine
ELSEWHERE = "_spsolve"  # sparse, for CUDA alone


def names_in(namespace: str) -> set[str]:
    found = {
        name.removeprefix(f"{namespace}::")
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith(f"{namespace}::")
    }
    return {name.split(".")[0] for name in found}


def has_formula(name: str) -> bool:
    return formula_for(Operation(f"{name}.default", operation_type(f"{name}.default"))) is not None


def left_to_category(name: str) -> bool:
    return has_formula(name) and formula_for(Operation(f"{name}.default", OperationType.UNKNOWN)) is None


OF_OTHER_VERSIONS = {  # docs/versions.md names those of newer versions, which have no formula yet; the rest are names
    *("_cudnn_attention_forward_no_dropout_inplace", "_philox_randint", "_philox_randint_", "_scaled_addmm"),
    *("_scaled_addmm_", "linalg_matrix_sqrth", "linalg_polar", "shallow_copy_data_"),
    *("gather_into_tensor_", "wait_tensors"),
    *("align_as", "align_tensors", "align_to", "refine_names", "rename", "rename_"),  # of dimensions, before 2.13
}


def test_of_aten_all_that_computes_has_a_formula() -> None:
    without = {name for name in names_in("aten") if not has_formula(f"aten.{name}")}
    without = {name for name in without if not name.startswith("_test_")} - OF_OTHER_VERSIONS
    assert without == {*WITHOUT_WORK.split(), ELSEWHERE} & names_in("aten")


def test_of_aten_only_views_and_moves_are_left_to_their_category() -> None:
    """Else a wrong rate would pass for a right one: one operation per element is what a category says of anything."""
    decided = {name for name in names_in("aten") if left_to_category(f"aten.{name}")}
    kinds = {name: operation_type(f"aten.{name}.default") for name in decided}
    others = {name for name, kind in kinds.items() if kind not in (OperationType.VIEW, OperationType.MOVEMENT)}
    assert others - OF_OTHER_VERSIONS == {"_cudnn_init_dropout_state"}  # one random number per element


@pytest.mark.parametrize("namespace", ["c10d", "_c10d_functional", "_c10d_functional_autograd", "quantized_decomposed"])
def test_of_other_libraries_all_that_computes_has_a_formula(namespace: str) -> None:
    declare_operators()
    names = names_in(namespace) - {"_choose_qparams_per_token_asymmetric_impl"}  # inside another operator
    assert names
    assert {name for name in names if not has_formula(f"{namespace}.{name}")} <= OF_OTHER_VERSIONS


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_of_torchs_own_sample_inputs_every_formula_runs() -> None:
    program = Path(__file__).with_name("op_samples.py")
    (printed,) = children.run([sys.executable, str(program)], limit=570)
    found = json.loads(printed.out.splitlines()[-1])
    assert len(found["operations"]) > 500
    assert found["failures"] == []
    assert found["uncosted"] == []
