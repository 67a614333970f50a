"""How many kernels fusion predicts, beside those that torch.compile generates: python benchmarks/bench_fusion.py

Ours are those of one forward pass by GraphPartitioner(strategy="fusion"); torch's are read from the code that inductor
writes for the CPU: its own kernels, and calls of libraries (convolutions, products).
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from support import load_torchvision, load_transformers

import torchatlas as atlas
from torchatlas.tables import text_table
from torchatlas.units import format_bytes


def gpt2() -> tuple[nn.Module, tuple[Any, ...]]:
    transformers = load_transformers()

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 100, "n_positions": 32}
            self.model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))

        def forward(self, ids: torch.Tensor) -> Any:
            return self.model(ids, use_cache=False).logits

    return Logits(), (torch.randint(0, 100, (2, 16)),)


def pictures(name: str, **options: Any) -> Callable[[], tuple[nn.Module, tuple[Any, ...]]]:
    def build() -> tuple[nn.Module, tuple[Any, ...]]:
        return getattr(load_torchvision().models, name)(weights=None, **options), (torch.randn(1, 3, 64, 64),)

    return build


def perceptron() -> tuple[nn.Module, tuple[Any, ...]]:
    layers = [layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64))]
    return nn.Sequential(*layers), (torch.randn(8, 64),)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[Any, ...]]]] = {
    "MLP with GELU and LayerNorm": perceptron,
    "resnet18": pictures("resnet18"),
    "mobilenet_v2": pictures("mobilenet_v2"),
    "squeezenet1_1": pictures("squeezenet1_1"),
    "GPT-2, 2 layers": gpt2,
}


def compiled_kernels(model: nn.Module, args: tuple[Any, ...]) -> tuple[int, int]:
    """How many kernels inductor writes, and how many calls of libraries there are beside them."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    with torch.no_grad():
        _, code = run_and_get_code(torch.compile(model), *args)
    text = "\n".join(code)
    called = text[text.index("def call(") :]
    own = len(re.findall(r"^\s+(?:cpp_\w+|kernels?\.\w+)\(", called, re.MULTILINE))
    return own, len(re.findall(r"extern_kernels\.\w+\(|torch\.ops\.\w+\.[\w.]+\(", called))


def main() -> None:
    warnings.simplefilter("ignore")
    rows = []
    for name, build in MODELS.items():
        torch.manual_seed(0)
        model, args = build()
        model.eval()
        report = atlas.GraphPartitioner().partition(model, *args)
        own, library = compiled_kernels(model, args)
        saved = 1 - report.total_bytes / report.unfused_bytes
        traffic = f"{format_bytes(report.unfused_bytes)} -> {format_bytes(report.total_bytes)}"
        kernels = [f"{report.unfused_kernels}", f"{report.total_kernels}", f"{own} + {library}"]
        rows.append([name, *kernels, traffic, f"{saved:.0%}"])
        print(" | ".join(rows[-1]), flush=True)
    print()
    print(text_table(["model", ">ops", ">predicted", ">inductor + libraries", ">traffic", ">saved"], rows))


if __name__ == "__main__":
    main()
