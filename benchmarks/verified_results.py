"""Results of benchmarks/verified.py -> lines, tables and docs/verified.md."""

from __future__ import annotations

import json
import platform
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS, PAGE = ROOT / "docs" / "limits.md", ROOT / "docs" / "verified.md"
BEGIN, END = "<!-- begin: python benchmarks/verified.py --write -->", "<!-- end -->"
Catalogues = Mapping[str, Iterable[str]]  # of names of models
Families = Mapping[str, Iterable[str]]
UNFINISHED = "not done after"
PACKAGES = ("torch", "torchvision", "transformers", "timm")


@dataclass(frozen=True)
class Check:
    """One capture of a model and its proof, cost and picture; or one trace, compared with the model."""

    catalogue: str
    model: str
    mode: str
    verdict: str  # "equal", or the first thing that is not
    ops: int = 0
    compared: int = 0  # outputs of ops, and storages from outside as they are in the end
    uncosted: dict[str, int] = field(default_factory=dict)
    defects: list[str] = field(default_factory=list)  # of the picture
    seconds: float = 0.0  # of CPU time
    peak_bytes: int = 0
    day: str = ""

    @property
    def equal(self) -> bool:
        return self.verdict == "equal"

    @property
    def left_out(self) -> bool:
        return self.verdict.startswith("left out: ")

    @property
    def unfinished(self) -> bool:
        """It ran out of wall time: a fault of this run, but no result to keep."""
        return self.verdict.startswith(UNFINISHED)

    @property
    def refused(self) -> bool:
        """A trace that torch.export does not make: no fault."""
        return self.mode == "trace" and self.verdict.startswith("refused: ")

    @property
    def fails(self) -> bool:
        return not (self.left_out or self.refused) and not (self.equal and not self.uncosted and not self.defects)

    @property
    def words(self) -> str:
        found = [f"{self.ops:,} ops", f"{self.compared:,} compared", self.verdict]
        found += [f"uncosted: {', '.join(self.uncosted)}"] if self.uncosted else []
        found += [f"drawn with {len(self.defects)} defects: {self.defects[0]}"] if self.defects else []
        return f"{self.mode}: {', '.join(found)}"


def versions() -> str:
    return ", ".join(f"{name} {version(name)}" for name in PACKAGES if find_spec(name) is not None)


def read(results: Path | None) -> list[Check]:
    """The checks that a file holds. What other versions of the packages have passed says nothing of these."""
    if results is None or not results.exists():
        return []
    head, *lines = results.read_text().splitlines()
    if (written := json.loads(head)["versions"]) != versions():
        raise SystemExit(f"{results} is of {written}, and here is {versions()}: name another file with --results.")
    return [Check(**json.loads(text)) for text in lines]


def add(found: Iterable[Check], results: Path) -> None:
    """Write checks to the end of a file, each as a line of what is not as usual."""
    if not results.exists():
        results.write_text(json.dumps({"versions": versions()}) + "\n")
    with results.open("a") as file:
        file.writelines(json.dumps(unusual(one)) + "\n" for one in found)


def unusual(check: Check) -> dict[str, object]:
    usual = {one.name: one.default if one.default is not MISSING else None for one in fields(check)}
    return {name: value for name, value in vars(check).items() if value != usual[name] and value not in ({}, [])}


def named_limits() -> str:
    """What docs/limits.md says is captured partly or not at all: the first cells of those rows."""
    rows = [line.strip("|").split("|") for line in LIMITS.read_text().splitlines()]
    return "\n".join(cells[0] for cells in rows if len(cells) == 4 and cells[1].strip() in ("partly", "not"))


def explained(check: Check, limits: str) -> bool:
    return check.fails and f"`{check.model}`" in limits


def unexplained(found: list[Check], limits: str) -> list[Check]:
    return [one for one in found if one.fails and not explained(one, limits)]


def line(found: list[Check], limits: str) -> str:
    """What was found of one model."""
    words = [f"{one.words}{' (see docs/limits.md)' * explained(one, limits)}" for one in found]
    peak = max(one.peak_bytes for one in found) / 1e9
    return f"{found[0].model}: {'; '.join(words)}; {sum(one.seconds for one in found):.1f} s, {peak:.1f} GB"


def table(found: list[Check], limits: str) -> str:
    """How many models of each catalogue passed what."""
    groups = grouped(found, lambda one: one.catalogue)
    return table_of({**groups, "all": found}, "catalogue", limits)


def grouped(found: list[Check], key: Callable[[Check], str]) -> dict[str, list[Check]]:
    groups: dict[str, list[Check]] = {}
    for one in found:
        groups.setdefault(key(one), []).append(one)
    return groups


def table_of(groups: Mapping[str, list[Check]], title: str, limits: str) -> str:
    counts = {name: totals(group, limits) for name, group in groups.items()}
    titles = list(totals([], limits))
    rows = [[title, *titles], ["---"] * (len(titles) + 1)]
    rows += [[name, *(f"{number:,}" for number in count.values())] for name, count in counts.items()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def totals(found: list[Check], limits: str) -> dict[str, int]:
    """Counts of models, then of checks and what they compared."""
    models = grouped(found, lambda one: one.model)
    captures = [[one for one in checks if one.mode != "trace"] for checks in models.values()]
    ran = [checks for checks in captures if checks and not any(one.left_out for one in checks)]
    equal = Counter(one.mode for one in found if one.equal)
    return {
        "models": len(models),
        "left out": len([checks for checks in captures if any(one.left_out for one in checks)]),
        "forward equal": equal["forward"],
        "step equal": equal["training"],
        "costed": len([checks for checks in ran if all(one.ops and not one.uncosted for one in checks)]),
        "drawn": len([checks for checks in ran if all(one.ops and not one.defects for one in checks)]),
        "traced equal": equal["trace"],
        "not traced": len([one for one in found if one.mode == "trace" and (one.refused or one.left_out)]),
        "explained": len([one for one in found if explained(one, limits)]),
        "unexplained": len(unexplained(found, limits)),
        "ops replayed": sum(one.ops for one in found if one.mode != "trace"),
        "compared": sum(one.compared for one in found if one.mode != "trace"),
    }


# -- docs/verified.md --------------------------------------------------------------------------------------------------


def write_page(found: list[Check], catalogues: Catalogues, families: Families) -> None:
    """Put what was found between the marks of docs/verified.md."""
    text = PAGE.read_text()
    head, tail = text[: text.index(BEGIN)], text[text.index(END) :]
    PAGE.write_text("\n".join([f"{head}{BEGIN}", *page(found, catalogues, families), tail]))


def page(found: list[Check], catalogues: Catalogues, families: Families) -> list[str]:
    limits, run = named_limits(), {one.model for one in found}
    days = sorted({one.day for one in found})
    when = f"{days[0]} to {days[-1]}" if len(days) > 1 else days[0]
    not_run = {name: len(set(models) - run) for name, models in catalogues.items()}
    family_of = {model: family for family, models in families.items() for model in models}
    by_family = grouped([one for one in found if one.model in family_of], lambda one: family_of[one.model])
    left_out = {one.model: one.verdict for one in found if one.left_out and one.mode != "trace"}
    return [
        f"{when}, {versions()}, Python {platform.python_version()}, {platform.machine()}, one thread.",
        f"Not run yet: {', '.join(f'{count:,} of {name}' for name, count in not_run.items() if count) or 'none'}.",
        "",
        table(found, limits),
        "",
        "## What was left out?",
        "",
        *(f"- {verdict.removeprefix('left out: ')}: {n:,}" for verdict, n in Counter(left_out.values()).most_common()),
        "",
        "## What was not traced?",
        "",
        *(f"- `{one.model}`: {one.verdict[:200]}" for one in found if one.mode == "trace" and not one.equal),
        "",
        "## Which families of timm?",
        "",
        table_of(dict(sorted(by_family.items())), "family", limits),
    ]
