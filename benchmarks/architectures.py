"""Architectures that are traced once and run again with other sizes: which sizes may vary, and is the result equal?

    python benchmarks/architectures.py [NAME ...] [--write]

Each is built with random weights, in eval mode, traced with an example by `atlas.trace`, and run with the example and
with inputs of other sizes. "equal" says that every tensor it returns is the model's own, to the bit, and that no second
trace was made for it. Prints a Markdown table; --write puts it into docs/architectures.md. The exit code is 1 if
anything differs from what an entry says to expect.
"""

from __future__ import annotations

import argparse
import gc
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional

import torchatlas as atlas
from torchatlas.errors import CaptureError, InputMismatchError
from torchatlas.execute.exporting import bound
from torchatlas.torch_private import pytree

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from corpus import torchvision_models, transformers_models, wake
from support import load_transformers

PAGE = Path(__file__).resolve().parent.parent / "docs" / "architectures.md"
HEAD, RULE = "| architecture | nodes | inputs | run again with | result |", "|---|---|---|---|---|"
BEGIN, END = "<!-- begin: python benchmarks/architectures.py --write -->", "<!-- end -->"

EQUAL, AGAIN, REFUSED, NOT_TAKEN = "equal", "equal, traced once more", "refused", "the model does not take it"

Sizes = dict[str, int]
Inputs = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Architecture:
    """A model, what it is fed for given sizes, the sizes of the example, and those it is run with afterwards."""

    name: str
    build: Callable[[], nn.Module]
    inputs: Callable[..., Inputs]
    example: Sizes
    others: tuple[Sizes, ...]  # what differs from the example's; served by the same trace
    beyond: tuple[Sizes, ...] = ()  # not served by it: refused, traced once more, or not taken by the model itself
    batch_only: bool = False  # ask for the first dimension of each tensor only
    refused: str = ""  # what the error says, if it cannot be traced

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Outcome:
    """What became of one architecture."""

    architecture: Architecture
    traced: atlas.TracedModel | None
    served: tuple[str, ...] = ()  # the verdict on the example and on each of the others
    beyond: tuple[str, ...] = ()
    problem: str = ""  # why there is no traced model

    @property
    def as_expected(self) -> bool:
        if self.traced is None:
            wanted = self.architecture.refused
            return bool(wanted) and wanted in self.problem
        return (
            not self.architecture.refused
            and set(self.served) == {EQUAL}
            and all(verdict.startswith((AGAIN, REFUSED, NOT_TAKEN)) for verdict in self.beyond)
        )

    @property
    def result(self) -> str:
        """In words: what holds for all sizes, and what else for those beyond."""
        if self.traced is None:
            return self.problem
        architecture = self.architecture
        names = ["the example", *map(in_words, architecture.others)]
        unequal = [f"{name}: {verdict}" for name, verdict in zip(names, self.served, strict=True) if verdict != EQUAL]
        more = [f"{in_words(sizes)}: {found}" for sizes, found in zip(architecture.beyond, self.beyond, strict=True)]
        return "; ".join([*(unequal or [EQUAL]), *more])


# -- running -----------------------------------------------------------------------------------------------------------


def run(architecture: Architecture) -> Outcome:
    """Trace it once, then compare with the model for the example and for every other size."""
    torch.manual_seed(0)
    model = architecture.build().eval()
    wake(model)  # a head of zeros returns zeros whatever came before it
    args, kwargs = architecture.inputs(**architecture.example)
    shapes: Any = "auto"
    if architecture.batch_only:
        shapes = pytree.tree_map(lambda leaf: {0: torch.export.Dim.AUTO}, bound(model, args, kwargs))
    try:
        traced = atlas.trace(model, *args, kwargs=kwargs, dynamic_shapes=shapes)
    except CaptureError as error:
        return Outcome(architecture, None, problem=f"{REFUSED}: {_short(error)}")
    served = tuple(verdict(traced, architecture, sizes) for sizes in ({}, *architecture.others))
    return Outcome(architecture, traced, served, tuple(verdict(traced, architecture, s) for s in architecture.beyond))


def verdict(traced: atlas.TracedModel, architecture: Architecture, sizes: Sizes) -> str:
    """What the traced model returns for other sizes, against what the model returns."""
    args, kwargs = architecture.inputs(**{**architecture.example, **sizes})
    try:
        wanted = traced.model(*args, **kwargs)
    except (RuntimeError, ValueError, AssertionError, IndexError) as error:  # what models say of sizes
        return f"{NOT_TAKEN}: {_short(error)}"
    with counted_exports() as exports:
        try:
            got = traced(*args, **kwargs)
        except InputMismatchError as error:
            return f"{REFUSED}: {_short(error)}"
    return difference(wanted, got) or (AGAIN if exports else EQUAL)


def difference(wanted: Any, got: Any) -> str:
    """In words, what of two results is not the same to the bit; empty if all is."""
    ours, our_structure = pytree.tree_flatten(got)
    theirs, structure = pytree.tree_flatten(wanted)
    if our_structure != structure:
        return "another structure"
    if not any(isinstance(leaf, Tensor) and leaf.numel() > 1 and leaf.float().std() > 0 for leaf in theirs):
        return "nothing to compare: the model returns the same number everywhere"
    for place, (one, other) in enumerate(zip(theirs, ours, strict=True)):
        if isinstance(one, Tensor) != isinstance(other, Tensor):
            return f"output {place} is of another type"
        if not (one.dtype == other.dtype and torch.equal(one, other) if isinstance(one, Tensor) else one == other):
            return f"output {place} differs"
    return ""


@contextmanager
def counted_exports() -> Iterator[list[None]]:
    """One entry for each time torch.export is asked."""
    seen: list[None] = []
    export = torch.export.export

    def noted(*args: Any, **kwargs: Any) -> Any:
        seen.append(None)
        return export(*args, **kwargs)

    with patch("torch.export.export", noted):
        yield seen


def in_words(sizes: Sizes) -> str:
    return ", ".join(f"{name} {size}" for name, size in sizes.items())


def shapes_in_words(traced: atlas.TracedModel) -> str:
    """Inputs with their shapes: a number is fixed; a letter may vary, the same letter alike."""
    symbols = [size for shape in traced.input_shapes.values() for size in shape if isinstance(size, str)]
    simple = dict.fromkeys(size for size in symbols if size.isidentifier())
    letters = dict(zip(simple, ascii_lowercase, strict=False))
    found = []
    for name, shape in traced.input_shapes.items():
        sizes = [re.sub(r"[a-z]\w*", lambda match: letters.get(match[0], match[0]), str(size)) for size in shape]
        found.append(f"`{name}` {'×'.join(sizes)}".replace("*", ""))
    return ", ".join(found)


def _short(error: Exception) -> str:
    """An error's first sentence, without the files of this machine."""
    first = re.sub(r",? at \S+:\d+: .*", "", str(error).splitlines()[0])
    return first.partition(". ")[0].rstrip(".").replace("|", "/")[:160]


# -- inputs for given sizes --------------------------------------------------------------------------------------------


def images(batch: int, side: int) -> Inputs:
    return (torch.randn(batch, 3, side, side),), {}


def image_pairs(batch: int, side: int) -> Inputs:
    return (torch.randn(batch, 3, side, side), torch.randn(batch, 3, side, side)), {"num_flow_updates": 2}


def clips(batch: int, frames: int, side: int) -> Inputs:
    return (torch.randn(batch, 3, frames, side, side),), {}


def tokens(batch: int, length: int) -> Inputs:
    return (), {"input_ids": transformers_models.words(batch, length), "attention_mask": _mask(batch, length)}


def pairs(batch: int, length: int, target: int) -> Inputs:
    _, named = tokens(batch, length)
    return (), {**named, "decoder_input_ids": transformers_models.words(batch, target)}


def pixels(batch: int, side: int) -> Inputs:
    return (), {"pixel_values": torch.randn(batch, 3, side, side)}


def pixels_and_tokens(images: int, texts: int, length: int, side: int = 32) -> Inputs:
    return (), {**pixels(images, side)[1], **tokens(texts, length)[1]}


def mel_and_tokens(batch: int, target: int, frames: int = 32) -> Inputs:
    words = transformers_models.words(batch, target)
    return (), {"input_features": torch.randn(batch, 16, frames), "decoder_input_ids": words}


def waves(batch: int, samples: int) -> Inputs:
    return (), {"input_values": torch.randn(batch, samples)}


def sequences(batch: int, length: int, features: int = 8) -> Inputs:
    return (torch.randn(batch, length, features),), {}


def signals(batch: int, length: int) -> Inputs:
    return (torch.randn(batch, 4, length),), {}


def two_sequences(batch: int, source: int, target: int) -> Inputs:
    return (torch.randn(batch, source, 16), torch.randn(batch, target, 16)), {}


def rows(batch: int, features: int = 8) -> Inputs:
    return (torch.randn(batch, features),), {}


def graphs(nodes: int, edges: int) -> Inputs:
    return (torch.randn(nodes, 8), torch.randint(0, nodes, (2, edges))), {}


def many_graphs(nodes: int, edges: int) -> Inputs:
    (features, pairs), _ = graphs(nodes, edges)
    return (features, pairs, torch.arange(nodes) * 3 // nodes), {}


def image_and_table(batch: int, side: int) -> Inputs:
    return (
        torch.randn(batch, 3, side, side),
        {"numbers": torch.randn(batch, 5), "kind": torch.randint(4, (batch,))},
    ), {}


def clicks(batch: int, bags: int) -> Inputs:
    return (torch.randn(batch, 4), torch.randint(20, (batch, bags))), {}


def points(batch: int, count: int) -> Inputs:
    return (torch.randn(batch, count, 3),), {}


def _mask(batch: int, length: int) -> Tensor:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[-1, -2:] = 0
    return mask


# -- models of our own -------------------------------------------------------------------------------------------------


class Tagger(nn.Module):
    """Words of a sentence, each with a label: a recurrent network in both directions."""

    def __init__(self, kind: type[nn.RNNBase], **options: Any) -> None:
        super().__init__()
        self.recurrent = kind(8, 12, num_layers=2, batch_first=True, **options)
        self.head = nn.Linear(24 if self.recurrent.bidirectional else 12, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0])


class UNet(nn.Module):
    def __init__(self, width: int = 8, depth: int = 2) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        self.first = self._block(3, width)
        self.down = nn.ModuleList(self._block(narrow, 2 * narrow) for narrow in widths[:-1])
        self.widen = nn.ModuleList(nn.ConvTranspose2d(2 * narrow, narrow, 2, 2) for narrow in reversed(widths[:-1]))
        self.up = nn.ModuleList(self._block(2 * narrow, narrow) for narrow in reversed(widths[:-1]))
        self.last = nn.Conv2d(width, 2, 1)

    @staticmethod
    def _block(before: int, after: int) -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        levels = [self.first(x)]
        for block in self.down:
            levels.append(block(functional.max_pool2d(levels[-1], 2)))
        x = levels.pop()
        for widen, block in zip(self.widen, self.up, strict=True):
            x = block(torch.cat([levels.pop(), widen(x)], 1))
        return self.last(x)


class GraphConvolution(nn.Module):
    """Sums the neighbours' features, divided by how many there are."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 4)])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        degree = x.new_ones(x.shape[0]).index_add(0, target, x.new_ones(edges.shape[1]))
        for layer in self.layers:
            sent = layer(x)
            x = functional.elu(sent.index_add(0, target, sent[source]) / degree[:, None])
        return x


class GraphAttention(nn.Module):
    """A softmax over the edges that arrive at a node, then the mean over each graph of the batch."""

    def __init__(self, graphs: int = 3) -> None:
        super().__init__()
        self.value, self.score, self.graphs = nn.Linear(8, 8), nn.Linear(16, 1), graphs

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> tuple[Tensor, Tensor]:
        source, target = edges
        score = functional.leaky_relu(self.score(torch.cat([x[source], x[target]], 1))).squeeze(1)
        most = score.new_zeros(x.shape[0]).scatter_reduce(0, target, score, "amax")
        weight = (score - most[target]).exp()
        total = weight.new_zeros(x.shape[0]).scatter_add(0, target, weight)
        sent = self.value(x)[source] * (weight / total[target])[:, None]
        x = torch.zeros_like(x).index_add_(0, target, sent)
        pooled = x.new_zeros(self.graphs, 8).scatter_reduce(0, graph[:, None].expand(-1, 8), x, "mean")
        return x, pooled


class ImageAndTable(nn.Module):
    """Several inputs of several kinds, one of them a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 6, 3, 2), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.numbers, self.kind, self.head = nn.Linear(5, 6), nn.Embedding(4, 6), nn.Linear(18, 3)

    def forward(self, image: Tensor, table: dict[str, Tensor]) -> dict[str, Tensor]:
        parts = self.image(image), self.numbers(table["numbers"]).tanh(), self.kind(table["kind"])
        logits = self.head(torch.cat(parts, 1))
        return {"logits": logits, "best": logits.argmax(1)}


class Clicks(nn.Module):
    """A recommender: dense features and bags of indices, and their products with each other."""

    def __init__(self) -> None:
        super().__init__()
        self.dense, self.bags, self.top = nn.Linear(4, 8), nn.EmbeddingBag(20, 8, mode="sum"), nn.Linear(9, 1)

    def forward(self, dense: Tensor, bags: Tensor) -> Tensor:
        one, other = self.dense(dense).relu(), self.bags(bags)
        product = (one * other).sum(1, keepdim=True)
        return self.top(torch.cat([one, product], 1)).sigmoid()


class PointNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Conv1d(3, 16, 1), nn.BatchNorm1d(16), nn.ReLU(), nn.Conv1d(16, 32, 1))
        self.head = nn.Linear(32, 4)

    def forward(self, points: Tensor) -> Tensor:
        return self.head(self.each(points.transpose(1, 2)).amax(2)).log_softmax(1)


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Mixer(nn.Module):
    """Mixes patches and channels in turn; the number of patches is that of a weight."""

    def __init__(self, patches: int = 16, width: int = 12) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, 8, 8)
        self.across = nn.Sequential(nn.Linear(patches, 20), nn.GELU(), nn.Linear(20, patches))
        self.along = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 20), nn.GELU(), nn.Linear(20, width))

    def forward(self, x: Tensor) -> Tensor:
        x = self.cut(x).flatten(2)
        x = (x + self.across(x)).transpose(1, 2)
        return (x + self.along(x)).mean(1)


class VariationalAutoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(8, 6), nn.Linear(3, 8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, spread = self.encoder(x).chunk(2, -1)
        return self.decoder(mean + spread.exp()).sigmoid(), mean, spread


def temporal_convolution() -> nn.Module:
    blocks = [
        Residual(nn.Sequential(nn.ConstantPad1d((2 * step, 0), 0.0), nn.Conv1d(4, 4, 3, dilation=step), nn.ELU()))
        for step in (1, 2, 4)
    ]
    return nn.Sequential(*blocks, nn.GroupNorm(2, 4), nn.Conv1d(4, 2, 1))


def generator() -> nn.Module:
    return nn.Sequential(
        nn.Linear(8, 64),
        nn.Unflatten(1, (16, 2, 2)),
        nn.ConvTranspose2d(16, 8, 4, 2, 1),
        nn.BatchNorm2d(8),
        nn.ReLU(True),
        nn.ConvTranspose2d(8, 3, 4, 2, 1),
        nn.Tanh(),
    )


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.SiLU(), nn.Dropout(), nn.Linear(16, 3), nn.Softmax(-1))


def sequence_to_sequence() -> nn.Module:
    return nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)


# -- the list ----------------------------------------------------------------------------------------------------------


def torchvision(name: str) -> nn.Module:
    return torchvision_models.MODELS[name].build()[0]


def transformer(name: str, head: str = "AutoModel", **changes: Any) -> nn.Module:
    transformers = load_transformers()
    config = transformers_models.small(name)
    for field, value in changes.items():
        setattr(config, field, value)
    return getattr(transformers, head).from_config(config)


def language_model(name: str) -> nn.Module:
    return transformer(name, "AutoModelForCausalLM", use_cache=False)


def entries() -> Iterator[Architecture]:
    small, wide = {"batch": 2, "side": 32}, ({"batch": 3}, {"batch": 5, "side": 48})
    large, wider = {"batch": 2, "side": 64}, ({"batch": 3}, {"batch": 5, "side": 80})
    batches = ({"batch": 3}, {"batch": 7})
    larger = ({"side": 96},)
    # torchvision: at 32 pixels the last maps of most are one pixel, which fixes the path that was taken
    for name in (
        "resnet18",
        "squeezenet1_1",
        "mobilenet_v2",
        "mobilenet_v3_small",
        "shufflenet_v2_x0_5",
        "regnet_y_400mf",
    ):
        yield Architecture(name, partial(torchvision, name), images, large, wider)
    yield Architecture(
        "efficientnet_b0", partial(torchvision, "efficientnet_b0"), images, small, ({"batch": 3},), wide[1:]
    )
    for name in ("convnext_tiny", "lraspp_mobilenet_v3_large"):
        yield Architecture(name, partial(torchvision, name), images, small, wide)
    for name in ("densenet121", "googlenet", "swin_t", "swin_v2_t", "maxvit_t"):
        yield Architecture(name, partial(torchvision, name), images, large, batches, larger, batch_only=True)
    yield Architecture("vit_l_16", partial(torchvision, "vit_l_16"), images, small, batches, ({"side": 48},))
    film, longer = {"batch": 2, "frames": 4, "side": 32}, {"batch": 3, "frames": 6, "side": 48}
    yield Architecture("mc3_18", partial(torchvision, "mc3_18"), clips, film, ({"batch": 3}, longer))
    # transformers
    text, texts = {"batch": 2, "length": 8}, ({"batch": 3}, {"batch": 5, "length": 13})
    for name in ("bert", "roberta", "distilbert", "albert", "electra", "deberta-v2"):
        yield Architecture(name, partial(transformer, name), tokens, text, texts)
    for name in ("gpt2", "opt", "bloom", "llama", "qwen2", "gemma2", "mixtral"):
        yield Architecture(name, partial(language_model, name), tokens, text, texts)
    yield Architecture("mamba", partial(language_model, "mamba"), tokens, text, batches, ({"length": 13},))
    both = {"batch": 2, "length": 8, "target": 6}, ({"batch": 3}, {"batch": 5, "length": 13, "target": 9})
    for name in ("t5", "bart"):
        yield Architecture(name, partial(transformer, name, "AutoModelForSeq2SeqLM", use_cache=False), pairs, *both)
    for name in ("segformer", "swin"):
        model = partial(transformer, name)
        yield Architecture(f"{name} (transformers)", model, pixels, small, batches, ({"side": 48},), batch_only=True)
    yield Architecture("vit (transformers)", partial(transformer, "vit"), pixels, small, batches, ({"side": 48},))
    yield Architecture("dinov2", partial(transformer, "dinov2"), pixels, small, batches, ({"side": 48},))
    yield Architecture("beit", partial(transformer, "beit"), pixels, small, wide)
    yield Architecture(
        "clip",
        partial(transformer, "clip"),
        pixels_and_tokens,
        {"images": 2, "texts": 3, "length": 8},
        ({"images": 4}, {"images": 5, "texts": 2, "length": 13}),
    )
    yield Architecture(
        "whisper",
        partial(transformer, "whisper", use_cache=False),
        mel_and_tokens,
        {"batch": 2, "target": 6},
        ({"batch": 3}, {"batch": 5, "target": 9}),
        ({"frames": 48},),
    )
    yield Architecture(
        "wav2vec2",
        partial(transformer, "wav2vec2"),
        waves,
        {"batch": 2, "samples": 2000},
        ({"batch": 3}, {"batch": 3, "samples": 2900}),
    )
    # ours
    steps, more_steps = {"batch": 2, "length": 6}, ({"batch": 3}, {"batch": 5, "length": 9})
    lstm = partial(Tagger, nn.LSTM, bidirectional=True)
    yield Architecture("LSTM", lstm, sequences, steps, more_steps)
    yield Architecture("GRU", partial(Tagger, nn.GRU), sequences, steps, more_steps)
    yield Architecture("temporal convolution", temporal_convolution, signals, steps, more_steps)
    yield Architecture(
        "nn.Transformer",
        sequence_to_sequence,
        two_sequences,
        {"batch": 2, "source": 5, "target": 4},
        ({"batch": 3}, {"batch": 5, "source": 9, "target": 7}),
    )
    yield Architecture("U-Net", UNet, images, {"batch": 1, "side": 32}, wide)
    yield Architecture("MLP-Mixer", Mixer, images, small, batches, ({"side": 48},))
    yield Architecture("GAN generator", generator, rows, {"batch": 2}, batches)
    yield Architecture("variational autoencoder", VariationalAutoencoder, rows, {"batch": 2}, batches)
    yield Architecture("perceptron", perceptron, rows, {"batch": 1}, batches)
    web, webs = {"nodes": 6, "edges": 14}, ({"edges": 20}, {"nodes": 9, "edges": 17})
    yield Architecture("graph convolution", GraphConvolution, graphs, web, webs)
    yield Architecture("graph attention", GraphAttention, many_graphs, web, webs)
    yield Architecture("image and table", ImageAndTable, image_and_table, small, wide)
    yield Architecture("clicks", Clicks, clicks, {"batch": 2, "bags": 3}, ({"batch": 3}, {"batch": 5, "bags": 7}))
    cloud, clouds = {"batch": 2, "count": 10}, ({"batch": 3}, {"batch": 5, "count": 17})
    yield Architecture("PointNet", PointNet, points, cloud, clouds)


ARCHITECTURES = {entry.name: entry for entry in entries()}


# -- the table ---------------------------------------------------------------------------------------------------------


def line(outcome: Outcome) -> str:
    architecture, traced = outcome.architecture, outcome.traced
    if traced is None:
        return f"| {architecture} | | | | {outcome.result} |"
    asked = ", asked for the first dimension only" if architecture.batch_only else ""
    again = "; ".join(map(in_words, architecture.others))
    return f"| {architecture} | {len(traced.graph):,} | {shapes_in_words(traced)}{asked} | {again} | {outcome.result} |"


def lines(names: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """A line of the table for each name, and whether it says what its entry expects."""
    for name in names:
        try:
            outcome = run(ARCHITECTURES[name])
        except Exception as error:  # one that fails is shown, and the others go on
            yield f"| {name} | | | | error: {type(error).__name__}: {_short(error)} |", False
            continue
        yield line(outcome), outcome.as_expected
        del outcome
        gc.collect()  # some are large


def written(page: str, table: list[str]) -> str:
    """The page with another table."""
    head, _, rest = page.partition(BEGIN)
    return "\n".join([head + BEGIN, *table, END]) + rest.partition(END)[2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these")
    parser.add_argument("--write", action="store_true", help="all of them, into docs/architectures.md")
    options = parser.parse_args()
    if unknown := set(options.names) - set(ARCHITECTURES):
        parser.error(f"no architecture is named {', '.join(sorted(unknown))}; there are {', '.join(ARCHITECTURES)}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    load_transformers().logging.set_verbosity_error()
    began, table, unexpected = time.perf_counter(), [HEAD, RULE], []
    print(HEAD, RULE, sep="\n")
    for found, expected in lines(ARCHITECTURES if options.write or not options.names else options.names):
        print(found, flush=True)
        table.append(found)
        if not expected:
            unexpected.append(found)
    if options.write:
        PAGE.write_text(written(PAGE.read_text(), table))
    print(
        f"\n{len(table) - 2} architectures, {time.perf_counter() - began:.0f} s, torch {torch.__version__}, one thread."
    )
    if unexpected:
        print("Not as their entries say:", *unexpected, sep="\n")
    sys.exit(bool(unexpected))


if __name__ == "__main__":
    main()
