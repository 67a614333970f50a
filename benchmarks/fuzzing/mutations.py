"""A seed and a source of chance -> a file that is wrong in one way: in its bytes, zip, JSON, columns or content.

What is wrong lies as deep as possible: sizes and sums of what surrounds it are right, so that it gets past the first
checks.
"""

import base64
import dataclasses
import functools
import gzip
import io
import json
import random
import re
import struct
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

from fuzzing import programs
from fuzzing.data import mutated, mutated_text, wrong_text
from fuzzing.seeds import Seed

Members = dict[str, bytes]


def bytes_of_file(rng: random.Random, seed: Seed) -> bytes:
    found = bytearray(seed.data)
    for _ in range(rng.choice([1, 1, 2, 5])):
        start = rng.randrange(len(found))
        stop = min(start + rng.choice([1, 2, 4, 8, 64, 4096]), len(found))
        match rng.randrange(7):
            case 0:
                found[start] ^= 1 << rng.randrange(8)
            case 1:
                del found[start:stop]
            case 2:
                found[start:stop] *= 2
            case 3:
                found[start:stop] = rng.randbytes(stop - start)
            case 4:
                other = rng.randrange(len(found))
                found[start:stop] = found[other : other + stop - start]
            case 5:
                found[start:stop] = rng.choice([b"\0", b"\xff"]) * (stop - start)
            case 6:
                del found[start:]
        if not found:
            break
    return bytes(found)


def zip_of_file(rng: random.Random, seed: Seed) -> bytes:
    members = read_members(seed.data)
    names = list(members)
    one, other = rng.choice(names), rng.choice(names)
    match rng.randrange(9):
        case 0:
            del members[one]
        case 1:
            members[one], members[other] = members[other], members[one]
        case 2:
            members[one] = members[one][: rng.randrange(len(members[one]) + 1)]
        case 3:
            members[one] += rng.randbytes(rng.choice([1, 8, 1000]))
        case 4:
            members[rng.choice(["x" * 65_000, "a\0b", "../../canary", "/canary", "columns/", "\x1b[2J"])] = b"x"
        case 5:
            members |= {f"{number}": b"" for number in range(rng.choice([10, 999, 5000]))}
        case 6:
            return write_members(members, twice=one)
        case 7:
            return write_members(members, comment=rng.randbytes(rng.choice([1, 100, 65_535])))
        case 8:
            return write_members(members, method=zipfile.ZIP_DEFLATED)
    data = bytearray(write_members(members))
    if rng.random() < 0.5:  # fields of the directory, or of what stands before a member, that lie
        mark = rng.choice([b"PK\1\2", b"PK\1\2", b"PK\3\4", b"PK\5\6"])
        places = [found.start() for found in re.finditer(re.escape(mark), data)]
        if places:
            place = rng.choice(places) + 4 + 2 * rng.randrange(9 if mark == b"PK\5\6" else 21)
            size = rng.choice([2, 4])
            data[place : place + size] = rng.choice([0, 1, 2**16 - 1, 2**31, 2**32 - 1, len(data)]).to_bytes(
                8, "little"
            )[:size]
    return bytes(data)


def json_of_file(rng: random.Random, seed: Seed) -> bytes:
    """The whole of a .json file, or the header of an .atlas file, as data or as text."""
    members = read_members(seed.data) if seed.suffix == ".atlas" else {"header.json": seed.data}
    text = members["header.json"]
    if rng.random() < 0.7:
        document = json.loads(text)
        for _ in range(rng.choice([1, 1, 1, 2])):
            document = mutated(rng, document)
        text = json.dumps(document, separators=(",", ":") if rng.random() < 0.8 else None).encode()
    if rng.random() < 0.35:
        text = wrong_text(rng, text)
    members["header.json"] = text
    return write_members(members) if seed.suffix == ".atlas" else text


_EXTREMES = (-1, -2, 0, 1, 2, 2**15 - 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 255)


def columns_of_file(rng: random.Random, seed: Seed) -> bytes:
    members = read_members(seed.data)
    names = [name for name in members if name.startswith("columns/")]
    for _ in range(rng.choice([1, 1, 2])):
        name = rng.choice(names)
        column = np.load(io.BytesIO(members[name]))
        kind = np.iinfo(column.dtype)
        at = rng.randrange(len(column)) if len(column) else 0
        match rng.randrange(9) if len(column) else 8:
            case 0 | 1:
                column[at] = min(max(rng.choice(_EXTREMES), kind.min), kind.max)
            case 2:
                column.view(np.uint8)[rng.randrange(column.nbytes)] ^= 1 << rng.randrange(8)
            case 3:
                other = rng.randrange(len(column))
                column[at], column[other] = column[other], column[at]
            case 4:
                column = np.array(rng.sample(column.tolist(), len(column)), column.dtype)
            case 5:
                column[:] = column[at]
            case 6:
                column = np.roll(column, rng.choice([1, -1]))
            case 7:
                column[at] = min(max(int(column[at]) + rng.choice([1, -1]), kind.min), kind.max)
            case 8:
                column = np.resize(column, rng.choice([0, 1, len(column) + 1, 2 * len(column)]))
        made = io.BytesIO()
        np.save(made, column)
        members[name] = made.getvalue()
    return write_members(members)


def tables_of_file(rng: random.Random, seed: Seed) -> bytes:
    """One table of the header: names of operations, texts of calls, layouts."""
    members = read_members(seed.data)
    header = json.loads(members["header.json"])
    tables = header["tables"]
    for _ in range(rng.choice([1, 1, 2])):
        if rng.random() < 0.35 and _rows(tables, "operations", dict):
            row = rng.choice(_rows(tables, "operations", dict))
            row[rng.choice(["name", "type"])] = rng.choice([*programs.NAMES, *programs.TYPES])
        elif rng.random() < 0.5 and (texts := _rows(tables, "arguments", str)):
            row = rng.randrange(len(texts))
            tables["arguments"][row] = mutated_text(rng, texts[row])
        else:
            table = rng.choice([name for name in tables if tables[name]])
            tables[table] = mutated(rng, tables[table])
    members["header.json"] = json.dumps(header, separators=(",", ":")).encode()
    return write_members(members)


def _rows(tables: dict[str, Any], name: str, kind: type) -> list[Any]:
    """The rows of a table, unless an earlier change has made something else of it."""
    rows = tables[name]
    return rows if isinstance(rows, list) and all(isinstance(row, kind) for row in rows) else []


def values_of_file(rng: random.Random, seed: Seed) -> bytes:
    """The recorded tensors: bytes, or what the file says of their types, shapes and places."""
    members = read_members(seed.data)
    data = members.get("values.safetensors")
    if data is None:
        return columns_of_file(rng, seed)
    (size,) = struct.unpack("<Q", data[:8])
    header, content = data[8 : 8 + size], bytearray(data[8 + size :])
    match rng.randrange(4):
        case 0:
            content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        case 1:
            start = rng.randrange(len(content))
            content[start : start + 64] = rng.randbytes(len(content[start : start + 64]))
        case _:
            found = json.loads(header)
            keys = [key for key in found if key != "__metadata__"]
            one, other = rng.choice(keys), rng.choice(keys)
            match rng.randrange(4):
                case 0:
                    found[one], found[other] = found[other], found[one]
                case 1:
                    found[rng.choice(["-1:", "x", "9:9", "program/tensor/9", "999999:0", "\0", "٣:0"])] = found.pop(one)
                case 2:
                    found[one]["dtype"] = rng.choice(["U8", "F64", "I64", "BF16", "F8_E4M3", "BOOL", "C64", "F4"])
                case 3:
                    found = mutated(rng, found)
            header = json.dumps(found).encode()
    members["values.safetensors"] = struct.pack("<Q", len(header)) + header + bytes(content)
    return write_members(members)


_IN_PAGE = re.compile(rb'(<script type="application/x-atlas"[^>]* data-bytes=")(\d+)">([^<]*)')


def page_of_file(rng: random.Random, seed: Seed) -> bytes:
    """A page of the viewer: the archive in it, what packs it, or what the page says of it."""
    found = _IN_PAGE.search(seed.data)
    assert found is not None
    archive = gzip.decompress(base64.b64decode(found[3]))
    inner = dataclasses.replace(seed, suffix=".atlas", data=archive)
    if rng.random() < 0.6:
        inside = {name: data for name, data in read_members(archive).items() if not name.startswith("viewer/")}
        inner = dataclasses.replace(inner, data=write_members(inside)) if rng.random() < 0.9 else inner
        archive = rng.choice([zip_of_file, json_of_file, columns_of_file, tables_of_file])(rng, inner)
    packed, claimed = gzip.compress(archive, mtime=0), len(archive)
    match rng.randrange(6):
        case 0:
            packed = bytes_of_file(rng, dataclasses.replace(inner, data=packed))
        case 1:
            claimed = rng.choice([0, 1, claimed - 1, claimed + 1, 2 * claimed, 10**9, 10**14])
        case 2:
            packed = rng.choice([packed * 2, packed[:-4], packed + b"\0", gzip.compress(packed), archive])
    text = base64.b64encode(packed)
    return b"".join([seed.data[: found.start()], found[1], b"%d" % claimed, b'">', text, seed.data[found.end() :]])


def program_of_file(rng: random.Random, seed: Seed) -> bytes:
    return _metadata(rng, seed, programs.mutated_program)


def replay_of_file(rng: random.Random, seed: Seed) -> bytes:
    if rng.random() < 0.25:
        return values_of_file(rng, seed)
    if rng.random() < 0.3:
        return tables_of_file(rng, seed)
    return _metadata(rng, seed, programs.mutated_replay)


def _metadata(rng: random.Random, seed: Seed, change: Callable[[random.Random, Any], Any]) -> bytes:
    members = read_members(seed.data)
    header = json.loads(members["header.json"])
    header["metadata"] = change(rng, header["metadata"])
    members["header.json"] = json.dumps(header, separators=(",", ":")).encode()
    return write_members(members)


# What is changed -> how, and in which seeds.
KINDS: dict[str, tuple[Callable[[random.Random, Seed], bytes], Callable[[Seed], bool]]] = {
    "bytes": (bytes_of_file, lambda seed: True),
    "zip": (zip_of_file, lambda seed: seed.suffix == ".atlas"),
    "json": (json_of_file, lambda seed: seed.suffix != ".html"),
    "columns": (columns_of_file, lambda seed: seed.suffix == ".atlas"),
    "tables": (tables_of_file, lambda seed: seed.suffix == ".atlas"),
    "values": (values_of_file, lambda seed: seed.suffix == ".atlas"),
    "page": (page_of_file, lambda seed: seed.suffix == ".html"),
    "program": (program_of_file, lambda seed: bool(seed.inputs)),
    "replay": (replay_of_file, lambda seed: seed.replays),
}


def read_members(data: bytes) -> Members:
    return dict(_members(data))


@functools.lru_cache(maxsize=64)  # the seeds are read again for every case
def _members(data: bytes) -> Members:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def write_members(
    members: Members, *, twice: str | None = None, comment: bytes = b"", method: int = zipfile.ZIP_STORED
) -> bytes:
    made = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(made, "w", method) as archive:
        warnings.simplefilter("ignore")  # of a name that stands twice
        for name, data in [*members.items(), *([(twice, members[twice])] if twice else [])]:
            archive.writestr(zipfile.ZipInfo(name), data)
        archive.comment = comment
    return made.getvalue()
