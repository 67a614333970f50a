"""Every lesson runs on the installed torch, and all that it says is printed is printed."""

from __future__ import annotations

import linecache
import os
import re
from pathlib import Path
from urllib.parse import parse_qs

import pytest
import torch
from browser import Visit, chromium

from torchatlas.diagnosis.doctor import doctor
from torchatlas.diagnosis.events import DIAGNOSES
from torchatlas.export.html import load_pages
from torchatlas.graph import Phase
from torchatlas.learn import catalogue, lesson_page
from torchatlas.learn.catalogue import lesson_named, lessons
from torchatlas.learn.lesson import Kind, Lesson
from torchatlas.learn.lesson_session import LessonSession
from torchatlas.learn.runner import Runner, undisturbed
from torchatlas.tables import Printable

# The rest of the faults are marked slow: together they take twenty seconds.
QUICK = (
    "data-write",
    "eval-mode",
    "freed-graph",
    "in-place",
    "loss-without-grad",
    "no-gradient",
    "not-finite-backward",
)
EVERY = [
    pytest.param(lesson, id=lesson.name, marks=() if not lesson.finds or lesson.finds in QUICK else pytest.mark.slow)
    for lesson in lessons()
]
LONGEST_LINE = 75  # of code: with its number it fits a terminal of 80 columns
LONGEST_TITLE = 43


@pytest.mark.parametrize("lesson", EVERY)
def test_all_that_a_lesson_says_is_so(lesson: Lesson) -> None:
    with undisturbed():
        outcomes = Runner(lesson).run_all()
    for step, outcome in zip(lesson.steps, outcomes, strict=True):
        assert outcome.as_expected, (step.code, step.expected, outcome.printed, str(outcome.findings))
    if lesson.finds:
        broken, mended = (each.findings for each in outcomes if each.findings is not None)
        assert set(broken.keys) == {lesson.finds}
        assert not mended
        assert not mended.failures
        assert not mended.not_judged


def test_every_fault_of_the_doctor_is_a_lesson() -> None:
    doctor()  # fills the registry
    assert [lesson.finds for lesson in lessons("doctor")] == DIAGNOSES.names()
    assert all(lesson.name == lesson.finds for lesson in lessons("doctor"))
    assert not any(lesson.finds for lesson in lessons("graph"))


def test_a_doctors_lesson_says_what_is_seen_and_why() -> None:
    for lesson in lessons("doctor"):
        assert [step.kind for step in lesson.steps] == [Kind.BROKEN, Kind.MENDED, Kind.TEXT], lesson.name
        assert all(step.text for step in lesson.steps), lesson.name  # what is seen, why, what to take along
        assert all(step.expected for step in lesson.steps[:2]), lesson.name
        assert lesson.steps[0].code != lesson.steps[1].code


def test_lessons_fit_a_terminal_and_have_names_of_their_own() -> None:
    names = [lesson.name for lesson in lessons()]
    assert len(set(names)) == len(names)
    for lesson in lessons():
        assert len(lesson.title) <= LONGEST_TITLE, lesson.title
        for step in lesson.steps:
            assert all(len(line) <= LONGEST_LINE for line in step.code.split("\n")), (lesson.name, step.code)


def test_a_lesson_on_graphs_asks_and_has_a_page() -> None:
    for lesson in lessons("graph"):
        assert sum(bool(step.question) for step in lesson.steps) >= 3, lesson.name
        assert all(step.expected for step in lesson.steps if step.question), lesson.name
        assert lesson.page is not None, lesson.name
        assert lesson.steps[-1].kind is Kind.TEXT, lesson.name


def test_lessons_are_found_by_name_and_number() -> None:
    assert lesson_named("1") is lessons()[0]
    assert lesson_named("Order_of backward").name == "order-of-backward"
    with pytest.raises(KeyError, match=r"no lesson 'not-zerod'; did you mean not-zeroed"):
        lesson_named("not-zerod")
    with pytest.raises(KeyError, match=r"no lesson 'detach'; did you mean no-grad-and-detach\?"):
        lesson_named("detach")
    for unknown in ("", "0", "99", "xyzzy"):
        with pytest.raises(KeyError, match="torchatlas learn lists them"):
            lesson_named(unknown)


def test_lessons_come_with_the_package() -> None:
    """The wheel takes what lies in the package's folder; nothing is read from anywhere else."""
    package = Path(catalogue.__file__).parent
    assert len(list((package / "lessons").rglob("*.md"))) == len(lessons())


# -- pages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lesson", EVERY)
def test_the_page_opens_at_a_moment_that_it_has(lesson: Lesson, tmp_path: Path) -> None:
    with undisturbed():
        made = lesson_page.lesson_page(lesson)
    assert made is not None
    (tmp_path / "page.html").write_bytes(made.data)
    ((_, graph),) = load_pages(tmp_path / "page.html")
    link = {key: values[0] for key, values in parse_qs(made.fragment).items()}
    if lesson.name != "order":  # a scheduler runs no op
        assert 0 <= int(link["select"].removeprefix("n")) < len(graph)
    if "moment" in link:
        assert link["pane"] == "backward"
        node = graph.nodes[int(link["moment"])]
        assert graph.source == "autograd" or node.phase in (Phase.BACKWARD, Phase.RECOMPUTE), node
    elif not lesson.finds:
        pytest.fail("a lesson on graphs stands at a moment of backward")


def test_the_link_puts_the_player_there(tmp_path: Path) -> None:
    with undisturbed():
        made = lesson_page.lesson_page(lesson_named("order-of-backward"))
    assert made is not None
    path = tmp_path / "page.html"
    path.write_bytes(made.data)
    with chromium() as browser:
        visit = Visit.to(browser, path, fragment=f"#{made.fragment}")
        visit.wait_until_ready()
        text = visit.page.locator(".player").inner_text()
        visit.check()
    assert "step 2 of 6" in text
    assert "ExpBackward0" in text


# -- what is left behind -----------------------------------------------------------------------------------------------


def test_a_lesson_leaves_torch_as_it_was() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1).item()
    torch.manual_seed(5)
    with undisturbed():
        Runner(lesson_named("no-gradient")).run_all()
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
    assert torch.rand(1).item() == expected
    assert torch.is_grad_enabled()
    assert torch.get_default_dtype() is torch.float32
    assert linecache.getline("no-gradient-broken.py", 1) == "import torch\n"  # for tracebacks and pages


# -- the page of the documentation -------------------------------------------------------------------------------------

LESSONS_PAGE = Path(__file__).parents[2] / "docs" / "learn" / "lessons.md"
SHOWN = "order-of-backward"


def test_the_documentation_lists_and_shows_the_real_lessons() -> None:
    """Rewritten by TORCHATLAS_OVERWRITE_GOLDEN=1: the table between its heading and the next text, and the lesson."""
    rows = ["| lesson | what it is about | minutes |", "|---|---|---|"]
    rows += [f"| `{lesson.name}` | {lesson.title} | {lesson.minutes} |" for lesson in lessons()]
    shown = list[str]()
    with undisturbed():
        LessonSession(lesson_named(SHOWN), lambda piece: shown.append(_text(piece)), None).walk()
    lines = "\n".join(shown).strip().split("\n")
    parts = [at for at, line in enumerate(lines) if line.startswith("── ")]
    sample = "\n".join(f"    {line}".rstrip() for line in lines[: parts[2]]).rstrip()  # two parts of it
    table = "\n".join(rows)
    text = LESSONS_PAGE.read_text("utf-8")
    if os.environ.get("TORCHATLAS_OVERWRITE_GOLDEN"):
        text = re.sub(r"(?<=\n\n)(TABLE|\| lesson \|.*?)(?=\n\n)", lambda _: table, text, flags=re.DOTALL)
        text = re.sub(r"(?<=\n\n)(LESSON|    ── .*?)(?=\n\n\S)", lambda _: sample, text, flags=re.DOTALL)
        LESSONS_PAGE.write_text(text, "utf-8")
    assert f"\n\n{table}\n\n" in text
    assert f"\n\n{sample}\n\n" in text


def _text(piece: object) -> str:
    return piece.to_text(88) if isinstance(piece, Printable) else str(piece)
