"""Published figures of architectures, from papers and torchvision's tables, and a report -> whether it agrees.

None of them is our own output. Counts follow from the tables of the papers named; the arithmetic stands beside each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torchatlas.graph import OperationType
from torchatlas.partition.report import PartitionReport
from torchatlas.partition.validate.checks import PartitionCheck


@dataclass(frozen=True)
class Architecture:
    """How many convolutions, depthwise ones among them, and blocks a model has; None where nothing is published."""

    origin: str
    convolutions: int | None = None
    depthwise: int | None = None
    block: str = ""  # the class of its blocks
    blocks: int | None = None
    linears: int | None = None


@dataclass(frozen=True)
class Published:
    """One line of torchvision's tables: what it prints for the weights of a model."""

    origin: str
    gmacs: float
    parameters: int


_RESNET = "He et al. 2015, Deep residual learning, table 1"
_MOBILE2 = "Sandler et al. 2018, MobileNetV2, table 2"
_MOBILE3 = "Howard et al. 2019, Searching for MobileNetV3"
_DENSE = "Huang et al. 2016, Densely connected networks, table 1: the depth in its name is convolutions and one linear"
_VGG = "Simonyan and Zisserman 2014, table 1"

ARCHITECTURES: Mapping[str, Architecture] = {
    # a stem, two (or three) convolutions per block, and a projection where a stage changes the width
    "resnet18": Architecture(_RESNET, 1 + 2 * (2 + 2 + 2 + 2) + 3, 0, "BasicBlock", 8, 1),
    "resnet34": Architecture(_RESNET, 1 + 2 * (3 + 4 + 6 + 3) + 3, 0, "BasicBlock", 16, 1),
    "resnet50": Architecture(_RESNET, 1 + 3 * (3 + 4 + 6 + 3) + 4, 0, "Bottleneck", 16, 1),
    "resnet101": Architecture(_RESNET, 1 + 3 * (3 + 4 + 23 + 3) + 4, 0, "Bottleneck", 33, 1),
    "resnet152": Architecture(_RESNET, 1 + 3 * (3 + 8 + 36 + 3) + 4, 0, "Bottleneck", 50, 1),
    "resnext50_32x4d": Architecture("Xie et al. 2016, table 1", 1 + 3 * 16 + 4, 0, "Bottleneck", 16, 1),
    "wide_resnet50_2": Architecture(f"{_RESNET}, wider", 1 + 3 * 16 + 4, 0, "Bottleneck", 16, 1),
    # bottlenecks of expansion, depthwise and projection; the first expands nothing; one convolution before and after
    "mobilenet_v2": Architecture(_MOBILE2, 1 + 2 + 3 * 16 + 1, 1 + 2 + 3 + 4 + 3 + 3 + 1, "InvertedResidual", 17, 1),
    "mobilenet_v3_large": Architecture(f"{_MOBILE3}, table 1", None, 15, "InvertedResidual", 15, 2),
    "mobilenet_v3_small": Architecture(f"{_MOBILE3}, table 2", None, 11, "InvertedResidual", 11, 2),
    # squeeze and excitation are two convolutions more in each of 16 blocks, the first of which expands nothing
    "efficientnet_b0": Architecture(
        "Tan and Le 2019, EfficientNet, table 1", 1 + 4 + 5 * 15 + 1, 1 + 2 + 2 + 3 + 3 + 4 + 1, "MBConv", 16, 1
    ),
    # blocks that halve the picture have two depthwise and five convolutions, the others one and three
    "shufflenet_v2_x1_0": Architecture(
        "Ma et al. 2018, ShuffleNet V2, table 5", 1 + 5 * 3 + 3 * 13 + 1, 2 * 3 + 13, "InvertedResidual", 16, 1
    ),
    "densenet121": Architecture(_DENSE, 120, 0, "_DenseLayer", 6 + 12 + 24 + 16, 1),
    "densenet169": Architecture(_DENSE, 168, 0, "_DenseLayer", 6 + 12 + 32 + 32, 1),
    "googlenet": Architecture(
        "Szegedy et al. 2014, Going deeper, table 1: three before nine blocks of six", 3 + 9 * 6, 0, "Inception", 9, 1
    ),
    "squeezenet1_0": Architecture(
        "Iandola et al. 2016, table 1: eight fire modules of three", 1 + 3 * 8 + 1, 0, "Fire", 8, 0
    ),
    "alexnet": Architecture("Krizhevsky et al. 2012, figure 2", 5, 0, linears=3),
    "vgg11": Architecture(_VGG, 8, 0, linears=3),
    "vgg16": Architecture(_VGG, 13, 0, linears=3),
    "vgg19": Architecture(_VGG, 16, 0, linears=3),
    "convnext_tiny": Architecture(
        "Liu et al. 2022, A ConvNet for the 2020s, table 9: a stem, three between stages, one per block",
        1 + 3 + 18,
        3 + 3 + 9 + 3,
        "CNBlock",
        18,
    ),
    "vit_b_16": Architecture("Dosovitskiy et al. 2020, table 1: 12 layers, one embedding", 1, 0, "EncoderBlock", 12),
    "vit_b_32": Architecture("Dosovitskiy et al. 2020, table 1: 12 layers, one embedding", 1, 0, "EncoderBlock", 12),
    "swin_t": Architecture("Liu et al. 2021, Swin, table 7", 1, 0, "SwinTransformerBlock", 2 + 2 + 6 + 2),
}


def facts_of(
    report: PartitionReport, model: Any, table: Published | None, paper: Architecture | None
) -> list[PartitionCheck]:
    """Compare the report of a model with a line of torchvision's table and with a paper, where there are any."""
    checks: list[PartitionCheck] = []
    if table is not None:
        gmacs = f"{report.total_macs / 1e9:.3f}"  # as many decimals as are printed
        parameters = sum(parameter.numel() for parameter in model.parameters())
        checks.append(_fact("published GMACs", gmacs, f"{table.gmacs:.3f}", table.origin))
        checks.append(_fact("published parameters", parameters, table.parameters, table.origin))
    if paper is not None and report.strategy == "op":  # there every operation is a subgraph
        kinds = [subgraph.operation_type for subgraph in report.subgraphs]
        splits = [subgraph.parallelism for subgraph in report.subgraphs]
        depthwise = sum(split is not None and split.is_depthwise for split in splits)
        for name, figure, right in (
            ("convolutions", kinds.count(OperationType.CONVOLUTION), paper.convolutions),
            ("depthwise convolutions", depthwise, paper.depthwise),
            ("linear layers", kinds.count(OperationType.MATMUL), paper.linears),
            (f"blocks ({paper.block})", _blocks(report, paper.block), paper.blocks),
        ):
            if right is not None:
                checks.append(_fact(name, figure, right, paper.origin))
    return checks


def _fact(name: str, figure: Any, right: Any, origin: str) -> PartitionCheck:
    same = figure == right
    return PartitionCheck(name, same, f"{figure} ({origin})" if same else f"{figure}, but {right} by {origin}")


def _blocks(report: PartitionReport, block: str) -> int:
    """How many modules of a class hold operations of some subgraph, themselves or in modules inside."""
    graph, paths = report.graph, set()
    parents, modules = graph.columns["call_parent"].tolist(), graph.columns["call_module"].tolist()
    for call in {int(graph.columns["node_call"][op]) for subgraph in report.subgraphs for op in subgraph.ops}:
        at = call
        while at >= 0:
            module = graph.tables.modules[modules[at]]
            if module.type == block:
                paths.add(module.path)
            at = parents[at]
    return len(paths)
