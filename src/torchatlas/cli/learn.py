"""torchatlas learn [LESSON]: lessons that run in the terminal: predict what is printed, then see it."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from torchatlas.cli._options import echo, output_option, print_json, print_result, print_styled, progress, verb
from torchatlas.errors import InvalidInputError

FAILED = 1


@click.command()
@click.argument("lesson", required=False, metavar="[LESSON]")
@click.option("--all", "through", is_flag=True, help="Run through without asking; without LESSON: every lesson.")
@click.option("--page", is_flag=True, help="Only write the lesson's page of the viewer, and open it.")
@output_option("Write the page here (.html) and keep it.")
@click.option("--no-browser", is_flag=True, help="Open no browser; print where the page is.")
@click.option("--reset", is_flag=True, help="Forget that LESSON was done; without LESSON: all.")
@verb
def command(
    lesson: str | None,
    through: bool,
    page: bool,
    output: Path | None,
    no_browser: bool,
    reset: bool,
    as_json: bool,
) -> None:
    """Learn how graphs work, and what goes wrong in training.

    Without LESSON the lessons are listed. LESSON is a name, a number of the list, or a file of your own (.md). It shows
    code, asks what it prints, runs it on the installed torch, and compares. Enter just shows; Ctrl-C leaves.

    Without a terminal nobody is asked, as with --all. Exit code 1: not all that was printed is what the lesson says.

    \b
    torchatlas learn
    torchatlas learn order-of-backward
    torchatlas learn not-zeroed --all
    torchatlas learn order-of-backward --page
    """
    from torchatlas.learn.catalogue import lesson_named
    from torchatlas.learn.lessons_done import LessonsDone

    lessons_done = LessonsDone()
    chosen = None if lesson is None else lesson_named(lesson)
    if reset:
        gone = lessons_done.reset(None if chosen is None else chosen.name)
        _print_reset(gone, lessons_done, as_json)
    elif page or output is not None:
        if chosen is None:
            raise click.UsageError("Name the lesson: torchatlas learn LESSON --page.")
        _write_page(chosen, output, no_browser, as_json)
    elif chosen is None and not through:
        _print_list(lessons_done, as_json)
    elif as_json:
        _run_to_json(chosen)
    elif through or not (sys.stdin.isatty() and sys.stdout.isatty()):
        _run_through(chosen)
    else:
        assert chosen is not None
        _run_with_questions(chosen, lessons_done)
    if lessons_done.trouble and not as_json:
        echo(lessons_done.trouble, err=True)


def _print_list(lessons_done: Any, as_json: bool) -> None:
    from torchatlas.learn.catalogue import FOLDERS, lessons
    from torchatlas.learn.terminal_text import lesson_list

    if as_json:
        listed = [
            {
                "name": each.name,
                "title": each.title,
                "minutes": each.minutes,
                "about": folder,
                "done": lessons_done.when(each.name),
            }
            for folder in FOLDERS
            for each in lessons(folder)
        ]
        print_json({"lessons": listed, "record": str(lessons_done.path)})
        return
    print_styled(lesson_list(lessons_done))
    left = [each.name for each in lessons() if each.name not in lessons_done]
    done = len(lessons()) - len(left)
    echo(f"\n{done} of {len(lessons())} done. " + (f"Next: torchatlas learn {left[0]}" if left else "All of them."))


def _print_reset(gone: list[str], lessons_done: Any, as_json: bool) -> None:
    if as_json:
        print_json({"reset": gone, "record": str(lessons_done.path)})
    else:
        echo(f"Forgotten: {', '.join(gone)}." if gone else "Nothing was done yet; nothing to forget.")


def _run_with_questions(lesson: Any, lessons_done: Any) -> None:
    from torchatlas.learn.catalogue import lessons
    from torchatlas.learn.lesson_session import LessonSession
    from torchatlas.learn.runner import undisturbed

    _print_title(lesson)
    wanted = "which line is wrong" if lesson.finds else "what will be printed"
    echo(f"Say {wanted}, or press Enter to just see it. Ctrl-C leaves.")
    session = LessonSession(lesson, print_styled, _read_line)
    try:
        with undisturbed():
            session.walk()
            if lesson in lessons():  # of a file that somebody writes there is nothing to keep
                lessons_done.add(lesson.name, session.right, session.asked)
            _print_end(lesson, session)
    except (KeyboardInterrupt, EOFError):
        echo(f"\nLeft before the end. To start again: torchatlas learn {lesson.name}")
        raise click.exceptions.Exit(130) from None
    if not session.as_expected:
        raise click.exceptions.Exit(FAILED)


def _read_line(prompt: str) -> str:
    with suppress(ImportError):
        import readline  # noqa: F401  # arrows and corrections at the prompt; Windows has none
    return input(prompt)


def _print_title(lesson: Any) -> None:
    from torchatlas.learn.terminal_text import line

    print_styled(line(f"{lesson.title} ({lesson.minutes} min)", "bold"))


def _print_end(lesson: Any, session: Any) -> None:
    from torchatlas.learn.catalogue import lessons

    score = f" Right: {session.right} of {session.asked}." if session.asked else ""
    echo(f"\nDone.{score}")
    if (path_and_link := _page_of(lesson, None)) is not None:
        echo(f"Look at it in a browser:\n  {path_and_link[1]}")
    names = [each.name for each in lessons()]
    if lesson.name in names[:-1]:
        echo(f"Next: torchatlas learn {names[names.index(lesson.name) + 1]}")


def _run_through(lesson: Any) -> None:
    """Without questions: one lesson, or all."""
    from torchatlas.learn.catalogue import lessons
    from torchatlas.learn.lesson_session import LessonSession
    from torchatlas.learn.runner import undisturbed

    different = []
    for each in lessons() if lesson is None else [lesson]:
        _print_title(each)
        session = LessonSession(each, print_styled, None)
        with undisturbed():
            session.walk()
        echo("")
        if not session.as_expected:
            different.append(each.name)
    if different:
        echo(f"Not as the lesson says: {', '.join(different)}.", err=True)
        raise click.exceptions.Exit(FAILED)


def _run_to_json(lesson: Any) -> None:
    from torchatlas.learn.catalogue import lessons
    from torchatlas.learn.runner import Runner, undisturbed

    listed: list[dict[str, Any]] = []
    for each in lessons() if lesson is None else [lesson]:
        with undisturbed():
            outcomes = Runner(each).run_all()
        steps = [
            {
                "text": step.text,
                "question": step.question,
                "code": step.code,
                "expected": step.expected,
                "printed": outcome.printed,
                "as_expected": outcome.as_expected,
                "findings": None if outcome.findings is None else outcome.findings.keys,
            }
            for step, outcome in zip(each.steps, outcomes, strict=True)
        ]
        listed.append({"name": each.name, "title": each.title, "minutes": each.minutes, "steps": steps})
    as_expected = all(step["as_expected"] for each in listed for step in each["steps"])
    print_json({"lessons": listed, "as_expected": as_expected})
    if not as_expected:
        raise click.exceptions.Exit(FAILED)


# -- the page ----------------------------------------------------------------------------------------------------------


def _write_page(lesson: Any, output: Path | None, no_browser: bool, as_json: bool) -> None:
    from torchatlas.cli._page import check_page
    from torchatlas.learn.runner import undisturbed
    from torchatlas.render.viewer.browser import open_in_browser, redirecting_page

    check_page(output)
    with progress("writing the page"), undisturbed():
        written = _page_of(lesson, output)
    if written is None:
        raise InvalidInputError(f"The lesson {lesson.name} has no page.")
    path, link = written
    # Desktops drop what follows # when they hand an address to the browser; a page that leads there keeps it.
    opened = not no_browser and open_in_browser(redirecting_page(link).as_uri())
    text = f"{'opened' if opened else 'open it in a browser'}: {link}"
    print_result({"file": str(path), "link": link, "opened": opened}, text, as_json)


def _page_of(lesson: Any, output: Path | None) -> tuple[Path, str] | None:
    """Write a lesson's page. Where it is, and the link that opens it at the right moment; None if there is none."""
    from torchatlas.cli._page import write_page
    from torchatlas.learn.lesson_page import lesson_page

    page = lesson_page(lesson)
    if page is None:
        return None
    path = write_page(page.data, output, lesson.name)
    address = path.resolve().as_uri()
    return path, f"{address}#{page.fragment}" if page.fragment else address
