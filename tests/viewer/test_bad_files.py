"""Files that are damaged, newer or something else are refused with a sentence, and the page goes on."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from corruption import damaged
from viewer.graphs import empty_page, training_step
from viewer.handing_over import hand_over

from torchatlas.graph import Graph


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_step().save(tmp_path_factory.mktemp("step") / "step.atlas")


def changed(data: bytes, change: Callable[[dict[str, bytes]], None]) -> bytes:
    """An archive with other members."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def newer(members: dict[str, bytes]) -> None:
    header = json.loads(members["header.json"])
    members["header.json"] = json.dumps(header | {"version": 99}).encode()


def headless(members: dict[str, bytes]) -> None:
    del members["header.json"]


def columnless(members: dict[str, bytes]) -> None:
    del members["columns/node_kind.npy"]


def far_away(members: dict[str, bytes]) -> None:
    """Every op reads values that the file does not have."""
    values = np.load(io.BytesIO(members["columns/input_value.npy"]))
    np.save(file := io.BytesIO(), np.full_like(values, 2**30))
    members["columns/input_value.npy"] = file.getvalue()


def cyclic(members: dict[str, bytes]) -> None:
    """Every op reads what the last one makes, and every module call is in the last one."""
    for name, last in {"input_value": "value_producer", "call_parent": "call_module"}.items():
        column = np.load(io.BytesIO(members[f"columns/{name}.npy"]))
        rows = len(np.load(io.BytesIO(members[f"columns/{last}.npy"])))
        np.save(file := io.BytesIO(), np.full_like(column, rows - 1))
        members[f"columns/{name}.npy"] = file.getvalue()


@pytest.mark.parametrize(
    ("name", "made", "sentence"),
    [
        ("newer.atlas", lambda data: changed(data, newer), "newer"),
        ("headless.atlas", lambda data: changed(data, headless), "headless.atlas"),
        ("columnless.atlas", lambda data: changed(data, columnless), "node_kind"),
        ("cut.atlas", lambda data: data[: len(data) // 2], "cut.atlas"),
        ("nothing.atlas", lambda data: b"", "nothing.atlas"),
        ("picture.atlas", lambda data: b"\x89PNG\r\n\x1a\n" + bytes(500), "picture.atlas"),
        ("packed.atlas", lambda data: b"\x1f\x8b" + data[2:], "packed.atlas"),
        ("other.json", lambda data: b'{"format": "something"}', "other.json"),
        ("broken.json", lambda data: b'{"format": "torchatlas", ', "broken.json"),
        ("text.txt", lambda data: b"hello", "text.txt"),
    ],
)
def test_a_bad_file_is_refused_and_the_next_one_is_read(
    page_of, tmp_path: Path, step: Path, name: str, made: Callable[[bytes], bytes], sentence: str
) -> None:
    bad = tmp_path / name
    bad.write_bytes(made(step.read_bytes()))
    page = page_of(empty_page(tmp_path), ready="empty")
    hand_over(page, bad, "dropped")
    status = page.get_by_role("status").filter(has_text=sentence)
    status.wait_for(timeout=10_000)
    assert page.locator("html").get_attribute("data-ready") == "empty"
    bad.write_bytes(step.read_bytes())
    if not name.endswith(".atlas"):
        bad = step
    hand_over(page, bad, "dropped")
    page.locator("html[data-ready=yes]").wait_for(state="attached", timeout=10_000)


def test_the_same_file_can_be_chosen_again_when_it_is_mended(page_of, tmp_path: Path, step: Path) -> None:
    path = tmp_path / "step.atlas"
    path.write_bytes(b"not yet")
    page = page_of(empty_page(tmp_path), ready="empty")
    hand_over(page, path)
    page.get_by_role("status").filter(has_text="step.atlas").wait_for()
    path.write_bytes(step.read_bytes())
    hand_over(page, path)
    page.locator("html[data-ready=yes]").wait_for(state="attached", timeout=10_000)


@pytest.mark.parametrize("change", [far_away, cyclic], ids=lambda change: change.__name__)
def test_numbers_that_make_no_sense_end_in_a_sentence_or_a_picture(page_of, tmp_path: Path, step: Path, change) -> None:
    """Python refuses such files. The viewer, which checks less, must not hang."""
    bad = tmp_path / "bad.atlas"
    bad.write_bytes(changed(step.read_bytes(), change))
    page = page_of(empty_page(tmp_path), ready="empty")
    hand_over(page, bad)
    refused = page.get_by_role("status").filter(has_text="bad.atlas")
    shown = page.locator("html[data-ready=yes]")
    refused.or_(shown).first.wait_for(state="attached", timeout=10_000)


def test_damage_of_any_kind_leaves_the_page_alive(page_of, tmp_path: Path, step: Path) -> None:
    page = page_of(empty_page(tmp_path), ready="empty")
    every = list(damaged(step.read_bytes(), seed=0, count=50))
    for number, data in enumerate(every[::6]):
        bad = tmp_path / f"bad{number}.atlas"
        bad.write_bytes(data)
        hand_over(page, bad, "dropped")
        refused = page.get_by_role("status").filter(has_text=bad.name)
        refused.or_(page.locator("html[data-ready=yes]")).first.wait_for(state="attached", timeout=10_000)
        if page.locator("html").get_attribute("data-ready") == "yes":  # the damage was harmless
            page.reload()
            page.locator("html[data-ready=empty]").wait_for(state="attached")


def test_a_page_whose_document_is_damaged_says_so(page_of, tmp_path: Path, step: Path) -> None:
    path = Graph.load(step).save(tmp_path / "step.html")
    text = path.read_text("utf-8")
    start = text.index(">", text.index('type="application/x-atlas"')) + 1
    path.write_text(text[: start + 400] + text[start + 800 :], "utf-8")
    page = page_of(path, ready="failed")
    assert "cannot be shown" in page.get_by_role("alert").inner_text()
