"""How far recording reaches: every model of torchvision, and the architectures of transformers.

    python benchmarks/reach.py [--full] [--only resnet18 gpt2 ...]

Each model trains one step alone, one in an empty dispatch mode that lists the ops, and one recorded. "equal" says that
the recording has the same ops in the same order, phase and module, and that loss and gradients agree to the bit.
With --full, the models that the tests build smaller have the size their authors gave them (needs 12 GB).
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from corpus import Entry, differences, torchvision_models, transformers_models, watch
from support import load_torchvision, load_transformers

CATALOGUES = {"torchvision": torchvision_models.MODELS, "transformers": transformers_models.MODELS}


def row(entry: Entry, full: bool) -> tuple[str, Counter[str]]:
    """One line of the table, and what it adds to the totals."""
    began = time.perf_counter()
    try:
        watched = watch(entry, full)
    except Exception as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0]}" if str(error) else type(error).__name__
        return f"| {entry} | | | does not run here: {reason} | |", Counter(not_run=1)
    found = differences(watched)
    forward, both = watched.witness.forward, len(watched.witness.operations)
    verdict = "equal" if not found else "; ".join(found)
    line = f"| {entry} | {forward:,} | {both - forward:,} | {verdict} | {time.perf_counter() - began:.1f} |"
    return line, Counter(models=1, ops=both, equal=not found)


def table(name: str, only: list[str], full: bool) -> Counter[str]:
    total: Counter[str] = Counter()
    print(f"\n| {name} | ops forward | ops backward | recording | s |\n|---|---|---|---|---|")
    for entry in CATALOGUES[name].values():
        if not only or entry.name in only:
            line, counts = row(entry, full)
            total += counts
            print(line, flush=True)
            gc.collect()
    print(
        f"\n{name}: {total['equal']} of {total['models']} models equal, {total['ops']:,} ops; "
        f"{total['not_run']} do not run here."
    )
    return total


def notes(full: bool) -> None:
    """What the tables leave out or change."""
    missing = set(load_torchvision().models.list_models()) - set(CATALOGUES["torchvision"])
    print(f"\ntorchvision models without a row: {', '.join(sorted(missing)) or 'none'}.")
    if not torchvision_models.compiled_operators_load():
        names = ", ".join(torchvision_models.TWO_STAGE_DETECTORS.split())
        print(f"The compiled operators of torchvision do not load here; with nms in Python: {names}.")
    if not full:
        names = ", ".join(entry.name for entry in CATALOGUES["torchvision"].values() if entry.full is not None)
        print(f"Built smaller than they are (not with --full): {names}.")
    types = len(load_transformers().MODEL_MAPPING)
    print(f"Model types of transformers with a row: {len(CATALOGUES['transformers'])} of {types}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="the largest models in their full size")
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME", help="these models")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    load_transformers().logging.set_verbosity_error()
    began = time.perf_counter()
    totals = [table(name, options.only, options.full) for name in CATALOGUES]
    notes(options.full)
    print(f"{time.perf_counter() - began:.0f} s, torch {torch.__version__}, one thread.")
    sys.exit(any(total["equal"] != total["models"] for total in totals))


if __name__ == "__main__":
    main()
