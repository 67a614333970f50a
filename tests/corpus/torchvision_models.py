"""Every model of torchvision: how to build it without weights, and the smallest input it trains on."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from support import load_torchvision
from torch import Tensor, nn

from corpus import Call, Entry

CLASSIFIERS = """
    alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161 densenet169 densenet201
    efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5 efficientnet_b6
    efficientnet_b7 efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5
    mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf regnet_x_1_6gf
    regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_128gf regnet_y_16gf regnet_y_1_6gf
    regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18 resnet34
    resnet50 resnext101_32x8d resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 shufflenet_v2_x1_5
    shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b swin_s swin_t swin_v2_b swin_v2_s swin_v2_t vgg11 vgg11_bn
    vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vit_b_16 vit_b_32 vit_h_14 vit_l_16 vit_l_32 wide_resnet101_2
    wide_resnet50_2
"""
QUANTIZABLE = """
    quantized_googlenet quantized_inception_v3 quantized_mobilenet_v2 quantized_mobilenet_v3_large quantized_resnet18
    quantized_resnet50 quantized_resnext101_32x8d quantized_resnext101_64x4d quantized_shufflenet_v2_x0_5
    quantized_shufflenet_v2_x1_0 quantized_shufflenet_v2_x1_5 quantized_shufflenet_v2_x2_0
"""
SEGMENTERS = """
    deeplabv3_mobilenet_v3_large deeplabv3_resnet101 deeplabv3_resnet50 fcn_resnet101 fcn_resnet50
    lraspp_mobilenet_v3_large
"""
ONE_STAGE_DETECTORS = """
    fcos_resnet50_fpn retinanet_resnet50_fpn retinanet_resnet50_fpn_v2 ssd300_vgg16 ssdlite320_mobilenet_v3_large
"""
TWO_STAGE_DETECTORS = """
    fasterrcnn_mobilenet_v3_large_320_fpn fasterrcnn_mobilenet_v3_large_fpn fasterrcnn_resnet50_fpn
    fasterrcnn_resnet50_fpn_v2 keypointrcnn_resnet50_fpn maskrcnn_resnet50_fpn maskrcnn_resnet50_fpn_v2
"""
CLIPS = "mc3_18 mvit_v1_b mvit_v2_s r2plus1d_18 r3d_18 s3d swin3d_b swin3d_s swin3d_t"
FLOWS = "raft_large raft_small"
INT8 = """
    quantized_googlenet quantized_mobilenet_v2 quantized_mobilenet_v3_large quantized_resnet18
    quantized_shufflenet_v2_x0_5
"""

SIZES = {"alexnet": 64, "inception_v3": 299, "maxvit_t": 224, "vit_h_14": 28}  # of a side; the others take 32


def picture(name: str, **changes: Any) -> Call:
    family = name.removeprefix("quantized_")
    size = changes.pop("size", SIZES.get(family, 32))
    if family.startswith("vit"):
        changes["image_size"] = size
    if family in ("googlenet", "inception_v3"):
        changes["init_weights"] = False  # scipy's way, and a warning without it
    return built(name, num_classes=10, **changes), (torch.randn(2, 3, size, size),), {}


def built(name: str, **changes: Any) -> nn.Module:
    return load_torchvision().models.get_model(name, weights=None, **changes)


@contextmanager
def constructed_with(module: str, cls: str, **changes: Any) -> Iterator[None]:
    """Let torchvision's own builder run, but hand its class other arguments: it takes no depth or size itself."""
    load_torchvision()
    owner = importlib.import_module(f"torchvision.models.{module}")
    original = getattr(owner, cls)
    with patch.object(owner, cls, lambda *args, **kwargs: original(*args, **{**kwargs, **changes})):
        yield


def shallow_transformer(name: str) -> Call:
    with constructed_with("vision_transformer", "VisionTransformer", num_layers=2):
        return picture(name)


def small_maxvit(name: str) -> Call:
    with constructed_with("maxvit", "MaxVit", partition_size=2, input_size=(64, 64)):
        return picture(name, size=64)


def shallow_regnet(name: str) -> Call:
    load_torchvision()
    regnet = importlib.import_module("torchvision.models.regnet")
    one_each = regnet.BlockParams([1] * 4, [264, 528, 792, 1056], [264] * 4, [1.0] * 4, [2] * 4, se_ratio=0.25)
    original = regnet.RegNet
    with patch.object(regnet, "RegNet", lambda _, **kwargs: original(one_each, **kwargs)):
        return picture(name)


def clip(name: str, frames: int = 4, size: int = 32, batch: int = 2) -> Call:
    return built(name, num_classes=10), (torch.randn(batch, 3, frames, size, size),), {}


def small_mvit(name: str) -> Call:
    with constructed_with("video.mvit", "MViT", spatial_size=(32, 32), temporal_size=4):
        return clip(name, batch=1)


def small_s3d(name: str) -> Call:
    model, args, kwargs = clip(name, frames=14, size=64, batch=1)
    model.avgpool = nn.AvgPool3d((2, 2, 2), stride=1)  # (2, 7, 7) asks for 224 pixels
    return model, args, kwargs


def segmenter(name: str) -> Call:
    return built(name, weights_backbone=None, num_classes=3), (torch.randn(2, 3, 32, 32),), {}


def flow(name: str) -> Call:
    return built(name), (torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128)), {"num_flow_updates": 2}


def detector(name: str, **changes: Any) -> Call:
    target = {"boxes": torch.tensor([[4.0, 4.0, 30.0, 40.0], [20.0, 10.0, 60.0, 50.0]]), "labels": torch.tensor([1, 1])}
    if name.startswith("maskrcnn"):
        target["masks"] = torch.rand(2, 64, 64).gt(0.5).byte()
    if name.startswith("keypointrcnn"):
        target["keypoints"] = torch.cat([torch.rand(2, 17, 2) * 40 + 5, torch.ones(2, 17, 1)], 2)
    if not name.startswith("ssd"):  # those bring their size in their name
        changes |= {"min_size": 64, "max_size": 64}
    model = built(name, weights_backbone=None, num_classes=2, **changes)
    count = 2 if name.startswith("ssdlite") else 1  # its last maps are one pixel: a batch norm needs two of them
    return model, ([torch.rand(3, 64, 64) for _ in range(count)], [target] * count), {}


def int8(name: str) -> Call:
    size = 64 if "shufflenet" in name else 32
    return picture(name, quantize=True, size=size)


@contextmanager
def nms_in_python() -> Iterator[None]:
    """Non-maximum suppression where torchvision's compiled operators do not load: the two-stage detectors need it.

    Its other fallback, `roi_align` in Python, is wrapped in torch.compile; the stance makes it run as it is written.
    """
    load_torchvision()
    extension = importlib.import_module("torchvision.extension")
    with ExitStack() as stack:
        if not extension._has_ops():
            library = stack.enter_context(torch.library._scoped_library("torchvision", "IMPL"))
            library.impl("nms", suppressed, "CPU")
            stack.enter_context(patch.object(extension, "_has_ops", lambda: True))
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        yield


def suppressed(boxes: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    """The boxes kept, best first: each drops the worse ones that overlap it by more than the threshold."""
    area = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    left = scores.argsort(descending=True, stable=True)
    kept = []
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        low = torch.maximum(boxes[best, :2], boxes[left, :2])
        high = torch.minimum(boxes[best, 2:], boxes[left, 2:])
        both = (high - low).clamp(min=0).prod(1)
        left = left[both / (area[best] + area[left] - both) <= iou_threshold]
    return torch.stack(kept) if kept else left


def compiled_operators_load() -> bool:
    load_torchvision()
    return bool(importlib.import_module("torchvision.extension")._has_ops())


def entries() -> Iterator[Entry]:
    smaller: dict[str, tuple[Callable[[str], Call], Callable[[str], Call]]] = {
        "maxvit_t": (small_maxvit, picture),
        "mvit_v1_b": (small_mvit, partial(clip, frames=16, size=224, batch=1)),
        "mvit_v2_s": (small_mvit, partial(clip, frames=16, size=224, batch=1)),
        "regnet_y_128gf": (shallow_regnet, picture),
        "s3d": (small_s3d, partial(clip, frames=14, size=224, batch=1)),
        "vit_h_14": (shallow_transformer, picture),
        "vit_l_16": (shallow_transformer, picture),
        "vit_l_32": (shallow_transformer, picture),
    }
    families: list[tuple[str, Callable[..., Call]]] = [
        (CLASSIFIERS, picture),
        (QUANTIZABLE, picture),
        (SEGMENTERS, segmenter),
        (ONE_STAGE_DETECTORS, detector),
        (CLIPS, clip),
        (FLOWS, flow),
    ]
    for names, build in families:
        for name in names.split():
            small, full = smaller.get(name, (build, None))
            yield Entry(name, partial(small, name), None if full is None else partial(full, name))
    for name in TWO_STAGE_DETECTORS.split():
        few = partial(
            detector, name, rpn_pre_nms_top_n_train=40, rpn_post_nms_top_n_train=8, box_batch_size_per_image=8
        )
        yield Entry(name, few, world=nms_in_python)
    for name in INT8.split():
        yield Entry(f"{name}-int8", partial(int8, name), trains=False)


MODELS = {entry.name: entry for entry in entries()}
