"""A name -> a model with random weights, an input for it, and what is published about it.

torchvision's models have pictures of the size that its tables are for; transformers are small ones. Both packages are
optional, and nothing is downloaded.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchatlas.errors import MissingDependencyError, UnknownNameError
from torchatlas.partition.validate.published import ARCHITECTURES, Architecture, Published
from torchatlas.registry import did_you_mean

# What `torchatlas validate` takes without names: small enough to run at the published size.
ONE_OF_EACH_FAMILY = (
    "resnet18", "resnet50", "mobilenet_v2", "efficientnet_b0", "vit_b_16", "swin_t", "densenet121", "googlenet",
    "ssdlite320_mobilenet_v3_large", "bert", "gpt2", "llama", "t5", "lstm",
)  # fmt: skip
_KINDS = {"": "picture", ".segmentation": "segmentation", ".detection": "detection"}
_CLASSES = 3  # of detectors
_BLOCKS = 2  # of the small transformers


@dataclass(frozen=True)
class Example:
    """A model and what to call it with."""

    name: str
    model: Any = field(repr=False)
    args: tuple[Any, ...] = field(repr=False)
    kwargs: dict[str, Any] = field(repr=False)
    architecture: Architecture | None = None
    published: Published | None = None


def example_named(name: str) -> Example:
    """The model of that name, in eval mode, with the same random weights every time."""
    import torch

    torch_state = torch.get_rng_state()
    torch.manual_seed(0)
    try:
        example = _OWN[name](name) if name in _OWN else _of_torchvision(name)
    finally:
        torch.set_rng_state(torch_state)
    example.model.eval()
    return example


def check_names(names: Iterable[str]) -> None:
    """Refuse unknown names before the first model is made."""
    for name in names:
        if name not in _OWN:
            _builder_module(name)


# -- torchvision -------------------------------------------------------------------------------------------------------

_declared: list[Any] = []  # a library of operators lives as long as something holds it


def torchvision_models(name: str) -> Any:
    """torchvision.models, for the model of that name."""
    spec = importlib.util.find_spec("torchvision")
    if spec is None:
        raise MissingDependencyError(f"{name!r} is torchvision's, which is not installed: pip install torchvision")
    _declare_operators(Path((spec.submodule_search_locations or ["."])[0]))
    return importlib.import_module("torchvision").models


def _declare_operators(package: Path) -> None:
    """Let torchvision be imported where its compiled operators do not load, as beside a torch of another build.

    Its import registers shapes for nms and qnms, and fails if they are not declared. Only detection models call them.
    """
    import torch

    if hasattr(torch.ops.torchvision, "nms"):
        return
    for extension in package.glob("_C*"):
        try:
            torch.ops.load_library(extension)
        except OSError:
            continue  # another build: the reason why we are here
    if hasattr(torch.ops.torchvision, "nms"):
        return
    library = torch.library.Library("torchvision", "FRAGMENT")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.append(library)


def _builder_module(name: str) -> tuple[Any, str]:
    """torchvision.models and the kind of the model of that name."""
    if importlib.util.find_spec("torchvision") is None and name not in (*ARCHITECTURES, *ONE_OF_EACH_FAMILY):
        raise UnknownNameError(
            f"unknown model {name!r}{did_you_mean(name, (*_OWN, *ARCHITECTURES)) or '.'} "
            "More are known with torchvision: pip install torchvision"
        )
    models = torchvision_models(name)
    listed = models.list_models()
    if name in listed:
        package = models.get_model_builder(name).__module__.rpartition(".")[0]
        kind = _KINDS.get(package.removeprefix("torchvision.models"))
        if kind is not None:
            return models, kind
    hint = did_you_mean(name, {*_OWN, *listed} - {name}) or "."
    raise UnknownNameError(
        f"unknown model {name!r}{hint} Names are those of torchvision's classification, "
        f"segmentation and detection models, {', '.join(_OWN)}; anything else is module:callable."
    )


def _of_torchvision(name: str) -> Example:
    import torch

    models, kind = _builder_module(name)
    if kind == "detection":
        _check_compiled(name)
    label, weight = next(iter(models.get_model_weights(name).__members__.items()))
    options: dict[str, Any] = {"weights": None}
    size = 320
    if kind == "picture":
        size = weight.transforms().crop_size[0]
    if kind == "segmentation":
        size = weight.transforms().resize_size[0]
        options |= {"num_classes": 21} if name.startswith("lraspp") else {"num_classes": 21, "aux_loss": True}
    if kind != "picture":
        options["weights_backbone"] = None
    if kind == "detection":
        options["num_classes"] = _CLASSES
        if not name.startswith("ssd"):  # those bring their size in their name
            options |= {"min_size": size, "max_size": size}
    if name in ("googlenet", "inception_v3"):
        options["init_weights"] = False  # takes a minute, and any weights will do
    if name == "googlenet":
        options["aux_logits"] = False  # the table leaves the auxiliary heads out
    if name.startswith("vit_"):
        options["image_size"] = size
    model = models.get_model(name, **options)
    if kind == "detection":
        _let_it_find(model)
    picture = torch.randn(1, 3, size, size)
    published = None
    if kind != "detection":  # there the table counts with pictures of a data set
        origin = f"torchvision's table, {type(weight).__name__}.{label}, {size} x {size}"
        published = Published(origin, weight.meta["_ops"], weight.meta["num_params"])
    args: tuple[Any, ...] = ([picture[0].sigmoid()],) if kind == "detection" else (picture,)
    return Example(name, model, args, {}, ARCHITECTURES.get(name), published)


def _let_it_find(model: Any) -> None:
    """Have a detector with random weights find a few boxes, so that what depends on boxes runs as well.

    By itself it accepts no box or every box; and SSDlite's are the same for every picture, because each of its many
    layers makes the signal smaller.
    """
    from torch import nn

    for head in (model, getattr(model, "roi_heads", None)):
        for setting, value in (("score_thresh", 0.01), ("topk_candidates", 20), ("detections_per_img", 20)):
            if hasattr(head, setting):
                setattr(head, setting, value)
    if hasattr(model, "rpn"):
        model.rpn._pre_nms_top_n, model.rpn._post_nms_top_n = ({"training": n, "testing": n} for n in (100, 20))
    if not hasattr(model.backbone, "fpn"):
        for module in model.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")


def _check_compiled(name: str) -> None:
    import torch

    boxes = importlib.import_module("torchvision.ops")
    try:
        boxes.nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
    except (RuntimeError, NotImplementedError) as error:
        raise MissingDependencyError(
            f"{name!r} calls torchvision's compiled operators, which do not load beside this torch: install the "
            "torchvision that was built for it."
        ) from error


# -- others ------------------------------------------------------------------------------------------------------------


def _transformers(name: str) -> Any:
    if importlib.util.find_spec("transformers") is None:
        raise MissingDependencyError(
            f"{name!r} is made by transformers, which is not installed: pip install transformers"
        )
    if importlib.util.find_spec("torchvision") is not None:
        torchvision_models(name)  # transformers imports it if it is there
    return importlib.import_module("transformers")


def _small(model: str, config: str, block: str, blocks: int = _BLOCKS, **settings: Any) -> Callable[[str], Example]:
    """A transformer of two small layers with a vocabulary of 31."""

    def build(name: str) -> Example:
        import torch

        package = _transformers(name)
        made = getattr(package, model)(getattr(package, config)(vocab_size=31, use_cache=False, **settings))
        tokens = torch.randint(3, 31, (2, 6))
        kwargs = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}
        if name == "t5":
            kwargs["decoder_input_ids"] = tokens.flip(1)
        facts = Architecture(f"the configuration it was made of, a {config}", 0, 0, block, blocks)
        return Example(name, made, (), kwargs, facts)

    return build


def _lstm(name: str) -> Example:
    import torch
    from torch import nn

    class Tagger(nn.Module):
        """Two layers of LSTM, and a linear layer on what they end with."""

        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.head = nn.LSTM(8, 16, 2, batch_first=True), nn.Linear(16, 4)

        def forward(self, x: torch.Tensor) -> Any:
            return self.head(self.lstm(x)[0][:, -1])

    return Example(name, Tagger(), (torch.randn(2, 5, 8),), {}, Architecture("its definition", 0, 0))


_SIZES = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": _BLOCKS, "num_attention_heads": 2}
_OWN: dict[str, Callable[[str], Example]] = {
    "bert": _small("BertForMaskedLM", "BertConfig", "BertLayer", max_position_embeddings=16, **_SIZES),
    "gpt2": _small(
        "GPT2LMHeadModel",
        "GPT2Config",
        "GPT2Block",
        n_positions=16,
        n_embd=8,
        n_layer=_BLOCKS,
        n_head=2,
        bos_token_id=1,
        eos_token_id=2,
    ),
    "llama": _small(
        "LlamaForCausalLM",
        "LlamaConfig",
        "LlamaDecoderLayer",
        num_key_value_heads=1,
        max_position_embeddings=16,
        **_SIZES,
    ),
    "t5": _small(
        "T5ForConditionalGeneration",
        "T5Config",
        "T5Block",
        2 * _BLOCKS,
        d_model=8,
        d_kv=4,
        d_ff=16,
        num_layers=_BLOCKS,
        num_heads=2,
        decoder_start_token_id=0,
    ),
    "lstm": _lstm,
}
