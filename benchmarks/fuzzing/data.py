"""JSON, as data or as text -> the same, wrong in one place."""

import json
import random
from typing import Any

_WRONG: tuple[Any, ...] = (
    None, True, False, 0, -1, -2, 1, 2, 3, 63, 64, 65, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64,
    -(2**63), 10**40, 10**400, 0.5, -0.0, 1e308, 5e-324,
    "", "x", "*", "\0", "\x1b[2J", "é\U0001f600", "a." * 249 + "a", "a." * 300, "x" * 70_000, "<script>", "\u202e",
    "s0", "s0**8", "((s0**8)**8)**8", "1//0", "s0 - 99", "s0/3", "(" * 300, "1" + "+1" * 3000, "Max()", "s9",
    "nan", "strided", "sparse_coo", "float32", "cpu", "cuda:7", "meta", "aten.add.Tensor", "communication", "run", "fx",
    "-1", "0:0", "00", "٣", "program", "replay", "__class__.__init__.__globals__", "__dict__", "../canary",
    [], {}, [[]], [0] * 1000, [1, 2], ["a", "b"], {"": 0}, {"a": 1}, {"tensor": 0}, {"tensor": 10**6}, {"tensor": -1},
    {"int": "9" * 4000}, {"int": "9" * 5000}, {"float": "nan"}, {"float": "inf"}, {"dtype": "float32"},
    {"device": "cuda"}, {"opaque": "x"}, {"tuple": [1, 2]}, {"dict": [[1, 2]]}, {"dict": [[[], 2]]}, {"symbol": "s0"},
    {"complex": [1, "x"]}, {"complex": [{"float": "nan"}, 1]}, {"group": "0"}, {"memory_format": "x"},
)  # fmt: skip


def mutated(rng: random.Random, data: Any) -> Any:
    """The data with one thing changed; it may be changed in place."""
    parent, key = _place(rng, data)
    if parent is None:
        return rng.choice(_WRONG)
    old = parent[key]
    match rng.randrange(8):
        case 0 | 1:
            parent[key] = rng.choice(_WRONG)
        case 2:
            if isinstance(parent, list):
                parent.pop(key)
            else:
                del parent[key]
        case 3:
            if isinstance(parent, list):
                parent.insert(key, json.loads(json.dumps(old)))
            else:
                parent[rng.choice(["extra", "", "0", "-1", "99", "x" * 1000, "__class__"])] = rng.choice(_WRONG)
        case 4:
            other, place = _place(rng, data)
            if other is not None:
                parent[key] = json.loads(json.dumps(other[place]))
        case 5 | 6:
            parent[key] = _near(rng, old)
        case 7:
            if isinstance(old, str):
                parent[key] = mutated_text(rng, old)
            elif isinstance(old, list):
                rng.shuffle(old)
            elif isinstance(old, dict) and old:
                one = rng.choice(list(old))
                old[rng.choice([*old, f"{one}x", "0", "7"])] = old.pop(one)
    return data


def _place(rng: random.Random, data: Any) -> tuple[Any, Any]:
    """A container inside the data and a key of it: every level is as likely as the one below."""
    parent, key, here = None, None, data
    while isinstance(here, (dict, list)) and here and (parent is None or rng.random() < 0.8):
        key = rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
        parent, here = here, here[key]
    return parent, key


def _as_float(number: int) -> float:
    return float(number) if abs(number) < 10**300 else 1e300


def _near(rng: random.Random, old: Any) -> Any:
    """Another value of the same type."""
    if isinstance(old, bool):
        return not old
    if isinstance(old, int):
        return rng.choice([old + 1, old - 1, -old, old * 2, old ^ (1 << rng.randrange(40)), _as_float(old)])
    if isinstance(old, float):
        return rng.choice([old * 2, -old, 0.0, 1e300, int(old) if abs(old) < 1e300 else 0])
    if isinstance(old, str):
        return rng.choice(
            [old[1:], old + "x", old.upper(), old + "." + old, old[:-1], f" {old}", old.replace("a", "b")]
        )
    if isinstance(old, list):
        return rng.choice([old[::-1], old + old, old[1:], old[:-1], [old]])
    if isinstance(old, dict):
        return dict(reversed(old.items()))
    return 0


def mutated_text(rng: random.Random, text: str) -> str:
    """A text that may be JSON itself, such as a call."""
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if data is None or rng.random() < 0.2:
        place = rng.randrange(len(text) + 1)
        return (
            text[:place]
            + rng.choice(["", "x", ".", "[", "9" * 4400, "\n", "\ud800", "NaN", '"', "{}"])
            + text[place + 1 :]
        )
    return json.dumps(mutated(rng, data), separators=(",", ":"))


def wrong_text(rng: random.Random, text: bytes) -> bytes:
    """What json.dumps would never write."""
    mark = rng.choice([b"{", b"[", b":", b",", b'"'])
    places = [place for place in range(len(text)) if text[place : place + 1] == mark]
    place = rng.choice(places) + 1 if places else 0
    wrong = {
        b"{": [b'"a":1,"a":2,', b'"name":"x","name":"y",', b'"":', b'"id":0,"id":0,', b"{" * 3000],
        b"[": [b"[" * 250 + b"]" * 250 + b",", b"[" * 2000 + b"]" * 2000 + b",", b"[" * 200_000,
              b"1" * 5000 + b",", b"1e999,"],
        b":": [b"NaN,", b"Infinity,", b"9" * 5000, b"-", b"00", b'"\\ud800",', b'{"a":' * 1500],
        b",": [b",", b"//x\n", b"null,", b"\xff", b"\x00"],
        b'"': [b"\\u0000", b"\\ud800", b"\xff\xfe", b"\\x", b"\n", b"x" * 70_000, b"\\"],
    }  # fmt: skip
    return text[:place] + rng.choice(wrong[mark]) + text[place:]
