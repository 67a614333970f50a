"""Names of strangers' models do nothing but show."""

from __future__ import annotations

import pytest
from browser import DESKTOP
from hostile import HOSTILE, hostile_graph
from viewer.graphs import named

# Ends a script, an attribute, a comment, a style; begins others; no dots: those divide module paths.
MARKUP = (
    """</script><script>hacked=1</script>"'><img src=x onerror=hacked=1><svg/onload=hacked=1>"""
    """--><!--<script></style>${hacked=1}{{hacked=1}}\\");hacked=1//<a href=javascript:hacked=1>&lt;b&gt;"""
)
LONG = "long" * 25_000
OVERRIDE = "\u202egnirts\u2066"  # turns the writing direction, and isolates, without an end


def use_everything(page) -> None:
    """Open, select and point at what there is, as a curious person would."""
    for _ in range(3):
        page.get_by_role("button", name="open a level").click()
    rows = page.get_by_role("treeitem")
    for number in range(min(rows.count(), 12)):
        rows.nth(number).locator(".row").first.click()
    for key in ("t", "a", "d", "c", "g", "Escape"):
        page.keyboard.press(key)
    for tab in page.get_by_role("tab").all():
        tab.click()
        page.mouse.move(DESKTOP["width"] / 2, DESKTOP["height"] - 60)
    search = page.locator("#search")
    if search.count():
        search.fill("a")
        page.keyboard.press("Enter")
    page.mouse.move(DESKTOP["width"] / 2, DESKTOP["height"] / 2)


@pytest.mark.parametrize("text", [MARKUP, HOSTILE, OVERRIDE], ids=["markup", "controls", "directions"])
def test_texts_are_shown_and_not_obeyed(page_of, text: str) -> None:
    page = page_of(hostile_graph(text))
    use_everything(page)
    assert page.evaluate("typeof hacked") == "undefined"
    assert page.locator("#app [onerror], #app [onload], #app script, #app a[href^=javascript]").count() == 0
    if text == MARKUP:
        assert "<script>hacked=1</script>" in page.get_by_role("tree").inner_text()


def test_very_long_names_stay_in_their_place(page_of) -> None:
    page = page_of(named(LONG, "Class" + LONG))
    use_everything(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= DESKTOP["width"]
    assert page.locator("canvas").first.bounding_box()["width"] > 300


def test_a_name_does_not_turn_the_text_after_it(page_of) -> None:
    """What follows a name in its row still reads from left to right."""
    page = page_of(named(OVERRIDE, "Plain"))
    places = page.evaluate(
        """() => [...document.querySelectorAll("[role=treeitem] .name")].flatMap((name) => {
          const after = [...name.childNodes].find((node) => node.nodeType === 3 && node.data.includes("Plain"));
          if (!after) return [];
          const at = (place) => {
            const range = document.createRange();
            range.setStart(after, place);
            range.setEnd(after, place + 1);
            return range.getBoundingClientRect().left;
          };
          const begin = after.data.indexOf("Plain");
          return [[at(begin), at(begin + 4)]];
        })"""
    )
    assert places
    assert all(first < last for first, last in places)
