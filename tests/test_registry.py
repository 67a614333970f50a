"""The Registry: adding, refusing duplicates, listing, and what it says about an unknown name."""

from __future__ import annotations

import pytest

from torchatlas.errors import AtlasError, UnknownNameError
from torchatlas.registry import Registry, near_names


@pytest.fixture
def formats() -> Registry[str]:
    registry: Registry[str] = Registry("file format")
    registry.add(".json")("json")
    registry.add(".atlas", ".zip")("archive")
    return registry


def test_add_returns_what_it_decorates() -> None:
    registry: Registry[object] = Registry("verb")

    @registry.add("walk")
    def walk() -> str:
        return "walking"

    assert walk() == "walking"
    assert registry["walk"] is walk


def test_names_are_sorted_and_counted(formats: Registry[str]) -> None:
    assert formats.names() == [".atlas", ".json", ".zip"]
    assert list(formats) == formats.names()
    assert len(formats) == 3
    assert repr(formats) == "<Registry of 3 entries: file format>"


def test_two_names_one_entry(formats: Registry[str]) -> None:
    assert formats[".atlas"] is formats[".zip"]


def test_a_taken_name_is_refused_and_nothing_changes(formats: Registry[str]) -> None:
    with pytest.raises(ValueError, match=r"file format '\.json' is registered twice"):
        formats.add(".new", ".json")("other")
    assert formats[".json"] == "json"
    assert ".new" not in formats


def test_one_entry_cannot_take_a_name_twice(formats: Registry[str]) -> None:
    with pytest.raises(ValueError, match="registered twice"):
        formats.add(".new", ".new")("other")


def test_an_entry_without_a_name_is_refused(formats: Registry[str]) -> None:
    with pytest.raises(ValueError, match="at least one name"):
        formats.add()


def test_unknown_name_suggests_near_ones(formats: Registry[str]) -> None:
    with pytest.raises(UnknownNameError) as caught:
        formats[".jsn"]
    assert str(caught.value) == "unknown file format '.jsn'; did you mean '.json'? Known: .atlas, .json, .zip"
    assert isinstance(caught.value, KeyError)
    assert isinstance(caught.value, AtlasError)


def test_unknown_name_far_from_all(formats: Registry[str]) -> None:
    with pytest.raises(UnknownNameError) as caught:
        formats["qqqq"]
    assert str(caught.value) == "unknown file format 'qqqq'. Known: .atlas, .json, .zip"


def test_unknown_name_in_an_empty_registry() -> None:
    with pytest.raises(UnknownNameError) as caught:
        Registry("verb")["walk"]
    assert str(caught.value) == "unknown verb 'walk'; none is registered"


def test_a_long_list_stays_out_of_the_message() -> None:
    registry: Registry[int] = Registry("formula")
    for number in range(100):
        registry.add(f"aten.op{number}.default")(number)
    with pytest.raises(UnknownNameError) as caught:
        registry["aten.op5.defautl"]
    assert "did you mean 'aten.op5.default'" in str(caught.value)
    assert "Known" not in str(caught.value)


def test_get_is_silent_about_a_missing_entry(formats: Registry[str]) -> None:
    assert formats.get(".json") == "json"
    assert formats.get(".nothing") is None
    assert ".nothing" not in formats


def test_near_names_ignore_case_and_keep_spelling() -> None:
    assert near_names("linear", ["Linear", "Conv2d"]) == ["Linear"]
    assert near_names("anything", []) == []
