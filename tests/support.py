"""Other people's packages and models, for the tests that want real ones."""

import importlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from torchatlas.torch_private import SINCE, version_can

_torchvision_operators: torch.library.Library | None = None


def needs(row: str) -> None:
    """Skip the test if docs/versions.md has such a row, and this version of torch cannot do what it names."""
    if row in SINCE and not version_can(row):
        pytest.skip(f"docs/versions.md, {row}: torch {torch.__version__} is too old")


def sampled(values: Iterable[Any], every: int) -> list[Any]:
    """Values to parametrize by: `make test` takes one in `every`, and `make test-all` the others, too."""
    return [pytest.param(one, marks=[pytest.mark.slow] * (at % every > 0)) for at, one in enumerate(values)]


def either(module: Any, new: str, old: str) -> Any:
    """A function that newer versions of torch call by another name; they warn of the old one."""
    return getattr(module, new, None) or getattr(module, old)


def load_torchvision() -> ModuleType:
    """Import torchvision, also where its compiled operators do not load (a CUDA wheel beside a CPU torch)."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("torchvision is not installed")
    _declare_missing_operators(Path(spec.submodule_search_locations[0]))
    return importlib.import_module("torchvision")


def _declare_missing_operators(package: Path) -> None:
    # `import torchvision` registers fake kernels for nms and qnms and fails when nobody has declared the two.
    global _torchvision_operators
    for extension in package.glob("_C*"):
        try:
            torch.ops.load_library(extension)
        except OSError:
            continue
    if hasattr(torch.ops.torchvision, "nms"):
        return
    _torchvision_operators = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        _torchvision_operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def load_transformers() -> ModuleType:
    """Import transformers; its image code imports torchvision, which must be loadable by then."""
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed")
    if importlib.util.find_spec("torchvision") is not None:
        load_torchvision()
    return importlib.import_module("transformers")


def tiny_gpt2() -> tuple[nn.Module, dict[str, Any]]:
    transformers = load_transformers()
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=31, n_positions=16, n_embd=8, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=2
    )
    return transformers.GPT2LMHeadModel(config), _tokens(31)


def tiny_llama() -> tuple[nn.Module, dict[str, Any]]:
    transformers = load_transformers()
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=31,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
    )
    return transformers.LlamaForCausalLM(config), _tokens(31)


def tiny_bert() -> tuple[nn.Module, dict[str, Any]]:
    transformers = load_transformers()
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=31,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=16,
    )
    return transformers.BertForMaskedLM(config), _tokens(31)


GIANTS: dict[str, dict[str, int]] = {
    "7B": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
    "70B": {
        "hidden_size": 8192,
        "intermediate_size": 28672,
        "num_hidden_layers": 80,
        "num_attention_heads": 64,
        "num_key_value_heads": 8,
    },
    "405B": {
        "hidden_size": 16384,
        "intermediate_size": 53248,
        "num_hidden_layers": 126,
        "num_attention_heads": 128,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
    },
}


def giant_llama(size: str, **changes: int) -> nn.Module:
    """Only for fake tensors and the meta device."""
    transformers = load_transformers()
    config = transformers.LlamaConfig(**{**GIANTS[size], **changes}, use_cache=False)
    return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)


def _tokens(vocabulary: int) -> dict[str, Any]:
    tokens = torch.randint(3, vocabulary, (2, 6))
    return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": tokens.clone()}
