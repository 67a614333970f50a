"""Multiply-adds and parameters of torchvision's models against the figures that torchvision prints for its weights.

    python benchmarks/published.py [MODEL ...] [--no-grad | --step]

Without names: every weight of a classification, segmentation or video model, quantized ones included (as the float
models they are made from). Each architecture and input size is captured once, from the meta device on fake tensors:
nothing is downloaded, allocated or computed. Prints what differs, then the totals; the exit code is 1 if anything does.
With --step a whole training step (forward, backward, AdamW) of each is costed instead: prints what has no formula.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

import torchatlas as atlas
from torchatlas.analysis.node_work import count
from torchatlas.torch_private import no_dispatch_modes

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support import load_torchvision

KINDS = {"": "picture", ".quantization": "picture", ".segmentation": "segmentation", ".video": "video"}


@dataclass(frozen=True)
class Case:
    """An architecture and its input."""

    model: str
    options: tuple[tuple[str, Any], ...]
    shape: tuple[int, ...]

    def build(self) -> nn.Module:
        models = load_torchvision().models
        with patch.object(models.regnet.BlockParams, "from_init_params", _on_real_tensors(models)):
            model: nn.Module = models.get_model(self.model, **dict(self.options))
        return model.eval()

    def __str__(self) -> str:
        return f"{self.model} {'x'.join(map(str, self.shape))}"


@dataclass(frozen=True)
class Published:
    """One line of torchvision's tables."""

    weight: str  # ResNet18_Weights.IMAGENET1K_V1, also under the name DEFAULT
    gmacs: float
    parameters: int

    def agrees(self, macs: int, parameters: int) -> bool:
        """To the three decimals that are printed, and to the last parameter."""
        return f"{macs / 1e9:.3f}" == f"{self.gmacs:.3f}" and parameters == self.parameters


def published() -> Iterator[tuple[Case, Published]]:
    """All lines, also those that name the same weight again as the default."""
    models = load_torchvision().models
    for model in models.list_models():
        package = models.get_model_builder(model).__module__.rpartition(".")[0]
        kind = KINDS.get(package.removeprefix("torchvision.models"))
        for name, weight in models.get_model_weights(model).__members__.items() if kind else ():
            shape = _shape(kind, weight.transforms())
            case = Case(model, tuple(_options(model, kind, weight, shape).items()), shape)
            yield case, Published(f"{type(weight).__name__}.{name}", weight.meta["_ops"], weight.meta["num_params"])


def _shape(kind: str | None, transforms: Any) -> tuple[int, ...]:
    """One picture as the weight's own transforms crop it, or 16 frames; segmentation: 520 pixels both ways."""
    if kind == "segmentation":
        return (1, 3, *transforms.resize_size * 2)
    return (1, 3, 16, *transforms.crop_size) if kind == "video" else (1, 3, *transforms.crop_size * 2)


def _options(model: str, kind: str | None, weight: Any, shape: tuple[int, ...]) -> dict[str, Any]:
    found: dict[str, Any] = {"weights": None, "num_classes": len(weight.meta["categories"] or range(1000))}
    if kind == "segmentation":
        found |= {"weights_backbone": None} | ({} if model.startswith("lraspp") else {"aux_loss": True})
    if model.endswith(("googlenet", "inception_v3")):
        found["init_weights"] = False
    if model.endswith("googlenet"):
        found["aux_logits"] = False  # the table leaves the auxiliary heads out
    if model.startswith("vit_"):
        found["image_size"] = shape[-1]
    return found


def _on_real_tensors(models: Any) -> Callable[..., Any]:
    """A RegNet works out its widths with tensors and reads them: that cannot be done without values."""
    original = models.regnet.BlockParams.from_init_params

    def from_init_params(*args: Any, **kwargs: Any) -> Any:
        with no_dispatch_modes(), torch.device("cpu"):
            return original(*args, **kwargs)

    return from_init_params


def measured(case: Case, grad: bool = True) -> tuple[int, int]:
    """Multiply-adds of a forward pass in eval mode, and parameters."""
    with torch.device("meta"):
        model, picture = case.build(), torch.empty(case.shape)
    with torch.set_grad_enabled(grad):
        graph = atlas.capture(model, picture, fake=True)
    return int(count(graph).macs.clip(0).sum()), graph.scopes[""].parameters


def without_formula(case: Case) -> dict[str, int]:
    """The operations of a training step that have no cost, and how often they run."""
    with torch.device("meta"):
        model, picture = case.build().train(), torch.empty((2, *case.shape[1:]))
    graph = atlas.capture(model, picture, backward=True, optimizer=torch.optim.AdamW, fake=True)
    assert len(graph.where(phase="backward")) > len(graph.where(phase="forward")) / 4
    assert len(graph.where(phase="optimizer")) > 0
    return count(graph).uncosted


def cost_steps(cases: list[Case]) -> int:
    wrong = 0
    for case in cases:
        if missing := without_formula(case):
            wrong += 1
            print(f"{case}: {missing}")
    print(f"every operation has a cost in {len(cases) - wrong} of {len(cases)} training steps")
    return int(wrong > 0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--no-grad", action="store_true", help="as in inference: torch then takes its fast paths")
    parser.add_argument("--step", action="store_true", help="cost training steps, and print what has no formula")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines = [(case, line) for case, line in published() if not options.models or case.model in options.models]
    if options.step:
        return cost_steps(list(dict.fromkeys(case for case, _ in lines)))
    known: dict[Case, tuple[int, int]] = {}
    began, wrong = time.process_time(), 0
    for case, line in lines:
        if case not in known:
            known[case] = measured(case, grad=not options.no_grad)
        macs, parameters = known[case]
        if not line.agrees(macs, parameters):
            wrong += 1
            print(f"{line.weight}, {case}:")
            print(
                f"    {macs / 1e9:.6f} GMACs ({line.gmacs} published), {parameters:,} parameters ({line.parameters:,})"
            )
    seconds = time.process_time() - began
    print(f"{len(lines) - wrong} of {len(lines)} weights agree; {len(known)} captures took {seconds:.0f} s of CPU time")
    return int(wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
