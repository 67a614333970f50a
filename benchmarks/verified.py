"""Which captures are proved to the bit: every model of torchvision, architectures of transformers, timm's registry.

    python benchmarks/verified.py [torchvision] [transformers] [timm] [resnet18 gpt2 timm/levit_128 ...]

Each model runs forward in eval mode, and one training step (forward, backward, AdamW) in training mode. Both are
captured with values="replay" and given to atlas.verify, after the model is gone; their cost must know every operation,
and their picture must have no defect. Then the model is traced, with a free batch, and compared with the model for two
batches: torch.export may refuse it, but what is traced must be equal to the bit.

What fails must be named, in backquotes, by a row of docs/limits.md that says "partly" or "not": the exit code is 1 if
something is not. Each model has a process of its own; one thread. timm's models are left out if they have more than
100 million parameters, or if one of the checks takes more than 10 seconds of CPU time or 8 GB.

timm is no dependency: `make timm` installs it, and without it the others run. A whole run takes many hours. With
`--results FILE`, a line of JSON is written for each check; a run that is started again, here or elsewhere, leaves out
what FILE holds, and its summary is of all of it. benchmarks/verified.jsonl is the FILE that goes on from session to
session.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import date
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchatlas as atlas
from torchatlas.capturing.replaying import CHANGED
from torchatlas.errors import AtlasError, CaptureError
from torchatlas.execute.exporting import bound
from torchatlas.execute.verify_replay import Verification
from torchatlas.render.picture import draw
from torchatlas.torch_private import pytree

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from corpus import (
    Call,
    Entry,
    loss_of,
    quick_numbers,
    same_bits,
    seed,
    timm_models,
    torchvision_models,
    transformers_models,
    wake,
)
from render.layout import verify
from support import load_transformers

from benchmarks.verified_results import UNFINISHED, Check, add, line, named_limits, read, table, unexplained, write_page

CATALOGUES = {
    "torchvision": torchvision_models.MODELS,
    "transformers": transformers_models.MODELS,
    "timm": timm_models.MODELS,
}
MODES = ("forward", "training", "trace")
WIDTH = 256  # of what narrow_vgg makes narrow: 4,096 else
CPU_SECONDS = {"timm": 10}  # for one check; beyond it, a model is left out. The others take as long as they take.
MOST_BYTES = 8 * 10**9  # for the process of a model


def narrow_vgg(build: Callable[[], Call]) -> Call:
    """Its hidden layers hold 100 million weights, of which a proof of a training step needs ten copies."""
    model, args, kwargs = build()
    layers: Any = model.classifier
    layers[0] = nn.Linear(layers[0].in_features, WIDTH)
    layers[3] = nn.Linear(WIDTH, WIDTH)
    layers[6] = nn.Linear(WIDTH, layers[6].out_features)
    return model, args, kwargs


def shallow_convnext(build: Callable[[], Call]) -> Call:
    """Three blocks of its 27 in the third stage."""
    model, args, kwargs = build()
    stages: Any = model.features
    stages[5] = stages[5][:3]
    return model, args, kwargs


SMALLER = {"convnext_large": shallow_convnext} | {
    f"vgg{depth}{norm}": narrow_vgg for depth in (11, 13, 16, 19) for norm in ("", "_bn")
}


def catalogue_of(entry: Entry) -> str:
    return next((name for name, entries in CATALOGUES.items() if entry.name in entries), "")


def world(entry: Entry) -> AbstractContextManager[Any]:
    """What must hold while a model runs: detectors in eval mode need nms, also those that train without it."""
    return torchvision_models.nms_in_python() if entry.name in CATALOGUES["torchvision"] else entry.world()


def built(entry: Entry, trains: bool) -> Call:
    seed()
    with quick_numbers():
        smaller = SMALLER.get(entry.name)
        model, args, kwargs = entry.build() if smaller is None else smaller(entry.build)
    wake(model)
    return model.train(trains), args, kwargs


def graph_of(entry: Entry, trains: bool) -> atlas.Graph:
    model, args, kwargs = built(entry, trains)
    if not trains:
        with torch.no_grad():
            return atlas.capture(model, *args, kwargs=kwargs, values="replay")
    return atlas.capture(
        model, *args, kwargs=kwargs, backward=True, loss=loss_of, optimizer=torch.optim.AdamW, values="replay"
    )


# -- the checks --------------------------------------------------------------------------------------------------------


def check(entry: Entry, mode: str) -> Check:
    found: dict[str, Any] = {}
    began = time.process_time()
    with world(entry):
        try:
            found = traced(entry) if mode == "trace" else proved(graph_of(entry, mode == "training"))
        except AtlasError as error:
            found["verdict"] = f"refused: {first_line(error)}"
        except timm_models.TooLarge as error:
            found["verdict"] = f"left out: {error}"
        except Exception as error:
            kind = "left out" if is_out_of_memory(error) else "does not run here"
            found["verdict"] = f"{kind}: {type(error).__name__}: {first_line(error)}"
    seconds, peak = time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    day = str(date.today())
    return Check(catalogue_of(entry), entry.name, mode, **found, seconds=round(seconds, 2), peak_bytes=peak, day=day)


def proved(graph: atlas.Graph) -> dict[str, Any]:
    gc.collect()  # the model
    proof = atlas.verify(graph)
    return {
        "verdict": verdict_on(proof),
        "ops": proof.replayed,
        "compared": proof.outputs + proof.storages,
        "uncosted": uncosted_in(graph),
        "defects": drawn_wrong(graph),
    }


def verdict_on(proof: Verification) -> str:
    if proof.first_difference is not None:
        return str(proof.first_difference)
    if proof.unplayed:
        return str(proof.unplayed[0])
    if proof.changed_storages:
        return f"ended differently: {', '.join(proof.changed_storages)}"
    if CHANGED in proof.patches:  # the rest was compared, but something ran that was not recorded
        return f"memory {CHANGED}: {proof.patches[CHANGED]} times"
    return "equal" if proof else str(proof)


def uncosted_in(graph: atlas.Graph) -> dict[str, int]:
    return dict(atlas.cost(graph).uncosted)


def drawn_wrong(graph: atlas.Graph) -> list[str]:
    """What the verifier of pictures says of the picture of a graph on a page of 1600 by 1200."""
    picture = draw(graph, width=1600, height=1200)
    account = verify.account(picture.outline, picture.scene)
    return [
        *verify.defects(picture.scene),
        *verify.hidden(picture.outline, picture.scene),
        *(f"missing: {edge}" for edge in account.missing),
        *(f"invented: {edge}" for edge in account.invented),
    ]


@torch.no_grad()
def traced(entry: Entry) -> dict[str, Any]:
    """The model against its trace, for the example and for twice its batch if the model takes that."""
    model, args, kwargs = built(entry, trains=False)

    def batch(leaf: Any) -> Any:
        return {0: torch.export.Dim.AUTO} if isinstance(leaf, torch.Tensor) and leaf.dim() and len(leaf) > 1 else None

    def doubled(leaf: Any) -> Any:
        return torch.cat([leaf, leaf.flip(0)]) if isinstance(leaf, torch.Tensor) and leaf.dim() else leaf

    shapes = pytree.tree_map(batch, bound(model, args, kwargs))
    program = atlas.trace(model, *args, kwargs=kwargs, dynamic_shapes=shapes)
    result = {"ops": len(program.graph.where(kind="op")), "compared": 0}
    for change in (None, doubled):
        inputs = (args, kwargs) if change is None else pytree.tree_map(change, (args, kwargs))
        try:
            wanted = pytree.tree_leaves(model(*inputs[0], **inputs[1]))
        except Exception:
            if change is None:
                raise
            continue  # the model itself has no other batch: its traced form need not have one
        try:
            got = pytree.tree_leaves(program(*inputs[0], **inputs[1]))
        except CaptureError as error:
            return {**result, "verdict": f"refused: {first_line(error)}"}
        for place, (one, other) in enumerate(zip(wanted, got, strict=True)):
            if not (same_bits(one, other) if isinstance(one, torch.Tensor) else one == other):
                return {**result, "verdict": f"output {place} differs{' for twice the batch' * (change is not None)}"}
        result["compared"] += len(wanted)
    return {**result, "verdict": "equal"}


def is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# -- a process for each model ------------------------------------------------------------------------------------------


def work(entry: Entry, modes: list[str], cpu_seconds: float | None, answers: Connection) -> None:
    if cpu_seconds is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (MOST_BYTES, MOST_BYTES))
    for mode in modes:
        if cpu_seconds is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_CPU)
            resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + cpu_seconds) + 1, hard))
        answers.send(check(entry, mode))
        gc.collect()


def checks(entry: Entry, modes: list[str], seconds: float) -> Iterator[Check]:
    """The checks of a model as a process of its own finds them, another one after each that ends it.

    They are forked: timm and transformers are slow to import.
    """
    catalogue, left = catalogue_of(entry), list(modes)
    while left:
        processes = multiprocessing.get_context("fork")
        here, there = processes.Pipe(duplex=False)
        process = processes.Process(target=work, args=(entry, left, CPU_SECONDS.get(catalogue), there))
        process.start()
        there.close()
        ends, verdict = time.monotonic() + seconds, ""
        while left and not verdict:
            try:
                if here.poll(max(0.0, ends - time.monotonic())):
                    yield here.recv()
                    left.pop(0)
                    continue
                verdict = f"{UNFINISHED} {seconds:.0f} s"
            except EOFError:
                process.join()
                verdict = f"its process ended with code {process.exitcode}"
                if process.exitcode == -signal.SIGXCPU:
                    verdict = f"left out: more than {CPU_SECONDS[catalogue]} s"
        process.kill()
        process.join()
        if verdict:
            yield Check(catalogue, entry.name, left.pop(0), verdict, day=str(date.today()))


def chosen(words: list[str]) -> list[Entry]:
    """The entries that the words name, by catalogue or one by one and in their order; all of them without words."""
    every = {name: entry for catalogue in CATALOGUES.values() for name, entry in catalogue.items()}
    unknown = [word for word in words if word not in CATALOGUES and word not in every]
    if unknown:
        raise SystemExit(f"no model and no catalogue: {', '.join(unknown)}")
    empty = [word for word in words if word in CATALOGUES and not CATALOGUES[word]]
    if empty:
        raise SystemExit(f"not installed: {', '.join(empty)}. Install it: make timm")
    named = [CATALOGUES.get(word, [word]) for word in words] if words else [every]
    return [every[name] for name in dict.fromkeys(name for names in named for name in names)]


def run(entries: list[Entry], modes: Sequence[str], seconds: float, results: Path | None) -> Iterator[list[Check]]:
    """The checks of each model that the file of results does not hold yet. It is written to after each model.

    A check that ran out of wall time is not written: on a busy machine that says nothing about the model.
    """
    done = {(one.model, one.mode) for one in read(results)}
    for entry in entries:
        wanted = [mode for mode in modes if mode != "training" or entry.trains]
        left = [mode for mode in wanted if (entry.name, mode) not in done]
        if not left:
            continue
        found = list(checks(entry, left, seconds))
        if results is not None:
            add((one for one in found if not one.unfinished), results)
        yield found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="torchvision, transformers, timm, or models of them")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument(
        "--seconds", type=float, default=600, help="of wall time for one model; give more on a busy machine"
    )
    parser.add_argument("--results", type=Path, help="a file of JSON lines, one for each check; a run goes on with it")
    parser.add_argument("--write", action="store_true", help="put the results into docs/verified.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    load_transformers().logging.set_verbosity_error()
    entries = chosen(options.names)
    for mode in MODES:
        check(CATALOGUES["transformers"]["gpt2"], mode)  # once here: what it imports late, no process has to import
    gc.freeze()
    limits, began, found = named_limits(), time.perf_counter(), read(options.results)
    for new in run(entries, options.modes, options.seconds, options.results):
        found += new
        print(line(new, limits), flush=True)
    print(table(found, limits))
    if options.write:
        write_page(found, CATALOGUES, timm_models.families())
    print("\n".join(f"not explained: {one.model}: {one.words}" for one in unexplained(found, limits)))
    print(f"{time.perf_counter() - began:.0f} s, torch {torch.__version__}, one thread.")
    sys.exit(bool(unexplained(found, limits)))


if __name__ == "__main__":
    main()
