"""Which captures are proved to the bit: every model of torchvision, and the architectures of transformers.

    python benchmarks/verified.py [torchvision] [transformers] [resnet18 gpt2 ...]

Each model runs forward in eval mode, and one training step (forward, backward, AdamW) in training mode. Both are
captured with values="replay" and given to atlas.verify, after the model is gone. A line says how many ops ran again and
how many of their outputs were compared. What is not equal must be named, in backquotes, by a row of docs/limits.md that
says "partly" or "not": the exit code is 1 if something is not. Each model has a process of its own; one thread.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import nn

import torchatlas as atlas
from torchatlas.capturing.replaying import CHANGED
from torchatlas.errors import AtlasError
from torchatlas.execute.verify import Verification

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from corpus import Call, Entry, loss_of, quick_numbers, seed, torchvision_models, transformers_models, wake
from support import load_transformers

CATALOGUES = {"torchvision": torchvision_models.MODELS, "transformers": transformers_models.MODELS}
LIMITS = Path(__file__).resolve().parent.parent / "docs" / "limits.md"
WIDTH = 256  # of what narrow_vgg makes narrow: 4,096 else


@dataclass(frozen=True)
class Check:
    """One capture and its proof."""

    mode: str
    equal: bool
    verdict: str  # "equal", or the first thing that is not
    ops: int = 0
    compared: int = 0  # outputs of ops, and storages from outside as they are in the end
    peak_bytes: int = 0


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


def world(entry: Entry) -> AbstractContextManager[Any]:
    """What must hold while a model runs: detectors in eval mode need nms, also those that train without it."""
    return torchvision_models.nms_in_python() if entry.name in CATALOGUES["torchvision"] else entry.world()


def graph_of(entry: Entry, trains: bool) -> atlas.Graph:
    seed()
    with quick_numbers():
        smaller = SMALLER.get(entry.name)
        model, args, kwargs = entry.build() if smaller is None else smaller(entry.build)
    wake(model)
    model.train(trains)
    if not trains:
        with torch.no_grad():
            return atlas.capture(model, *args, kwargs=kwargs, values="replay")
    return atlas.capture(
        model, *args, kwargs=kwargs, backward=True, loss=loss_of, optimizer=torch.optim.AdamW, values="replay"
    )


def check(entry: Entry, mode: str) -> Check:
    with world(entry):
        try:
            graph = graph_of(entry, mode == "training")
            gc.collect()
            proof = atlas.verify(graph)
        except AtlasError as error:
            return Check(mode, False, f"refused: {first_line(error)}")
        except Exception as error:
            return Check(mode, False, f"does not run here: {type(error).__name__}: {first_line(error)}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    verdict = verdict_on(proof)
    return Check(mode, verdict == "equal", verdict, proof.replayed, proof.outputs + proof.storages, peak)


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


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


# -- a process for each model ------------------------------------------------------------------------------------------


def work(entry: Entry, modes: list[str], answers: Connection) -> None:
    for mode in modes:
        answers.send(check(entry, mode))
        gc.collect()


def checks(entry: Entry, seconds: float) -> Iterator[Check]:
    """The checks of a model as a process of its own finds them. It is forked: transformers is slow to import."""
    modes = ["forward", "training"] if entry.trains else ["forward"]
    processes = multiprocessing.get_context("fork")
    here, there = processes.Pipe(duplex=False)
    process = processes.Process(target=work, args=(entry, modes, there))
    process.start()
    there.close()
    ends = time.monotonic() + seconds
    for mode in modes:
        try:
            if here.poll(max(0.0, ends - time.monotonic())):
                yield here.recv()
                continue
            verdict = f"not done after {seconds:.0f} s"
        except EOFError:
            process.join()
            verdict = f"its process ended with code {process.exitcode}"
        yield Check(mode, False, verdict)
        break
    process.kill()
    process.join()


# -- what is shown -----------------------------------------------------------------------------------------------------


def named_limits() -> str:
    """What docs/limits.md says is captured partly or not at all: the first cells of those rows."""
    rows = [line.strip("|").split("|") for line in LIMITS.read_text().splitlines()]
    return "\n".join(cells[0] for cells in rows if len(cells) == 4 and cells[1].strip() in ("partly", "not"))


def row(entry: Entry, seconds: float, limits: str) -> tuple[str, Counter[str]]:
    """One line of the table, and what it adds to the totals."""
    began, total, cells = time.perf_counter(), Counter(models=1), []
    found = list(checks(entry, seconds))
    for one in found:
        explained = not one.equal and f"`{entry.name}`" in limits
        total += Counter(
            checks=1, equal=one.equal, explained=explained, unexplained=not one.equal and not explained, ops=one.ops
        )
        total["compared"] += one.compared
        why = " (see docs/limits.md)" if explained else ""
        cells.append(f"{one.mode}: {one.ops:,} ops, {one.compared:,} compared, {one.verdict}{why}")
    peak = max(one.peak_bytes for one in found) / 1e9
    return f"{entry.name}: {'; '.join(cells)}; {time.perf_counter() - began:.1f} s, {peak:.1f} GB", total


def chosen(words: list[str]) -> dict[str, list[Entry]]:
    """The entries of each catalogue that the words name, by catalogue or one by one; all of them without words."""
    unknown = [word for word in words if word not in CATALOGUES and not any(word in c for c in CATALOGUES.values())]
    if unknown:
        raise SystemExit(f"no model and no catalogue: {', '.join(unknown)}")
    return {
        name: [entry for entry in catalogue.values() if not words or name in words or entry.name in words]
        for name, catalogue in CATALOGUES.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="torchvision, transformers, or models of them")
    parser.add_argument("--seconds", type=float, default=600, help="for one model; then its process is ended")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    load_transformers().logging.set_verbosity_error()
    check(CATALOGUES["transformers"]["gpt2"], "training")  # once here: what it imports late, no process has to import
    gc.freeze()
    limits, began, everything = named_limits(), time.perf_counter(), Counter[str]()
    for name, entries in chosen(options.names).items():
        total: Counter[str] = Counter()
        for entry in entries:
            line, counts = row(entry, options.seconds, limits)
            total += counts
            print(line, flush=True)
        if entries:
            print(summary(name, total), flush=True)
        everything += total
    print(summary("all", everything))
    print(f"{time.perf_counter() - began:.0f} s, torch {torch.__version__}, one thread.")
    sys.exit(everything["unexplained"] > 0)


def summary(name: str, total: Counter[str]) -> str:
    return (
        f"{name}: {total['models']} models, {total['equal']} of {total['checks']} checks equal to the bit, "
        f"{total['explained']} explained in docs/limits.md, {total['unexplained']} not; "
        f"{total['ops']:,} ops replayed, {total['compared']:,} outputs and storages compared."
    )


if __name__ == "__main__":
    main()
