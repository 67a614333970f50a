"""The program of a traced model and the replay section of a captured step, as data -> the same, wrong in one place."""

import contextlib
import json
import random
from typing import Any

import torch

from fuzzing.data import mutated, mutated_text
from torchatlas.graph.nouns import OperationType
from torchatlas.operations.loadable import loadable_operators

TYPES = [str(kind) for kind in OperationType]
# Every operator of torch by the name a graph gives it, and what only looks like a function.
NAMES = [
    *(
        f"{name.replace('::', '.')}{'' if '.' in name else '.default'}"
        for name in torch._C._dispatch_get_all_op_names()
    ),
    *[
        "operator.getitem",
        "operator.mul",
        "operator.pow",
        "operator.mod",
        "operator.add",
        "operator.attrgetter",
        "operator.methodcaller",
        "math.sqrt",
        "math.factorial",
        "torch.sym_max",
        "begin",
        "end",
        "os.system",
        "builtins.eval",
        "builtins.exec",
        "builtins.getattr",
        "builtins.__import__",
        "torch.load",
        "torch.ops.load_library",
        "torch.classes.load_library",
        "subprocess.run",
        "pickle.loads",
        "aten",
        "aten.add",
        "aten.add.nope",
        "aten..default",
        "...",
        "__class__",
        "torch.ops.aten.add.Tensor",
        "prim.device.default",
    ],
    "",
]
_CHAINS = [
    "__class__.__init__.__globals__", "forward.__globals__", "_modules", "__dict__", "first.__class__", "training",
    "first.weight.data", "first.weight.__class__", "load_state_dict", "", ".", "first..weight", "x" * 1000,
]  # fmt: skip
_CONDITIONS = [
    "__import__('os').system('touch canary')", "L['x'].size()[0] == 2", "L['x'].size()[99] == 2", "L['x'] == 2",
    "L['x'].size()[0]**8**8 > 0", "(9**8)**8 > 0", "1//0", "L['nope'] > 1", "max()", "math.sqrt(-1)", "L['x'].size()",
    "L['x'].size()['a']", "not L", "abs(L)", "max(1, 'a')", "2**-8 == 1", "1.5 % 0", "L['x'].stride()[0] / 0",
    "-" * 5000 + "1", "(" * 100 + "1" + ")" * 100, "1 < 2 < 3", "", "\0", "().__class__", "open('canary', 'w')",
    "L['x'].size(10**30)", "math.ceil(1e400)", "torch.sym_float('a')", "min(L['x'], 1)", "L['x'].storage_offset(1)",
]  # fmt: skip
_SPECS = [
    "*", ["tuple", None, ["*"]], ["dict", ["a", "a"], ["*", "*"]], ["dict", [[]], ["*"]], ["list", None, []],
    ["namedtuple", "collections:OrderedDict", ["*"]], ["namedtuple", "os:stat_result", ["*"]],
    ["namedtuple", "torch.return_types:max", ["*", "*"]], ["namedtuple", "sys:flags", ["*"] * 18],
    ["collections:deque", [1], ["*"]], ["collections:defaultdict", None, ["*"]], ["os:environ", None, []],
    ["torch.nn.modules.module:Module", None, ["*"]], ["dict", None, ["*"]], ["OrderedDict", [1], ["*"]], [], None, "x",
]  # fmt: skip


_LOADABLE = sorted(loadable_operators())


def mutated_program(rng: random.Random, metadata: dict[str, Any]) -> dict[str, Any]:
    _change_program(rng, metadata["program"])
    if rng.random() < 0.3:
        with contextlib.suppress(TypeError, LookupError, AttributeError):  # the first change may leave no place for it
            _change_program(rng, metadata["program"])
    return metadata


def _change_program(rng: random.Random, program: dict[str, Any]) -> None:
    variant = program["variant"]
    match rng.randrange(13):
        case 0 | 1 | 2:  # another function with the arguments of this one
            rng.choice(variant["calls"])[2] = _name(rng)
        case 3 | 4:
            step = rng.choice(variant["calls"])
            step[3] = mutated_text(rng, step[3])
        case 5:  # a call more, of anything with anything
            call = json.dumps([[_argument(rng, variant) for _ in range(rng.randrange(6))], {}])
            if rng.random() < 0.2:
                place, register = rng.randrange(len(variant["calls"]) + 1), rng.randrange(-1, len(variant["registers"]))
            else:  # at the end, where all is computed, into a register of its own: it runs
                place, register = len(variant["calls"]), len(variant["registers"])
                variant["registers"].append("more")
            variant["calls"].insert(place, ["more", register, _name(rng), call])
        case 6:
            place = rng.choice(["constants", "attached", "names"])
            keys = [*variant[place], "0", "1", "-1", "99", "x", "00", "٣"]
            variant[place][rng.choice(keys)] = rng.choice([*_CHAINS, *program["held"], 0, 1, -1, 99])
        case 7:
            variant["guards"].append(rng.choice(_CONDITIONS))
        case 8:
            variant[rng.choice(["in_spec", "out_spec"])] = rng.choice(_SPECS)
        case 9:
            program["held"][rng.choice([*_CHAINS, *program["held"]])] = {
                "tensor": rng.choice([0, 1, -1, 99, 2**40]),
                "kind": rng.choice(["parameter", "buffer", "x"]),
                "requires_grad": rng.random() < 0.5,
            }
        case 10:
            program["tensors"] = mutated(rng, program["tensors"])
        case 11:
            part = rng.choice(["signature", "tensors", "held", "weights", "variants", "model", "version"])
            program[part] = mutated(rng, program[part])
        case 12:
            part = rng.choice(list(variant))
            variant[part] = mutated(rng, variant[part])


def _name(rng: random.Random) -> str:
    """Of a function: half of the time one that a file may call."""
    return rng.choice(_LOADABLE if rng.random() < 0.5 else NAMES)


def _argument(rng: random.Random, variant: dict[str, Any]) -> Any:
    register = {"tensor": rng.randrange(len(variant["registers"]))}
    numbers = [0, 1, -1, 2, 7, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63), 1.5, {"float": "nan"}, {"float": "inf"}]
    others = [None, True, "sum", "a", [], [0], [1, 1], [2**40, 2**40], [-1], [register, register], {"dtype": "int64"}]
    more = [{"dtype": "complex64"}, {"layout": "sparse_coo"}, {"device": "meta"}, {"memory_format": "channels_last"}]
    return rng.choice([register, register, register, rng.choice(numbers), rng.choice(others), rng.choice(more)])


def mutated_replay(rng: random.Random, metadata: dict[str, Any]) -> dict[str, Any]:
    replay = metadata["replay"]
    match rng.randrange(4):
        case 0:
            part = rng.choice(list(replay))
            replay[part] = mutated(rng, replay[part])
        case 1:
            number, op = rng.choice([0, 1, -1, 7, 99, 2**40]), rng.randrange(replay["ops"])
            parts = [[0, rng.choice(["float32", "int64", "x"]), [rng.choice([0, 1, -1, 2**40])]]] * rng.randrange(4)
            kind = rng.choice(["sparse_coo", "sparse_csr", "quantized", "nested", "meta", "zero", "x"])
            recipe = {"op": op, "input": rng.randrange(3), "kind": kind, "shape": [number], "parts": parts}
            rows = {
                "recipes": recipe,
                "patches": [op, rng.randrange(9), number, rng.choice([0, 4, 2**40, -1]), "changed"],
                "draws": [op, rng.randrange(2), rng.random() < 0.5],
                "views": [op, rng.randrange(3), rng.randrange(5)],
                "generators": [rng.choice(["cpu", "cuda", "x", "meta"]), rng.random() < 0.5],
            }
            part = rng.choice(list(rows))
            replay[part].append(rows[part])
        case 2:
            chosen = rng.choice(replay["settings"])[1] if replay["settings"] else {}
            chosen[rng.choice(list(chosen) or ["x"])] = rng.choice(
                [0, 1, 2, -1, 4096, True, "x", "float64", "int64", None]
            )
        case 3:
            metadata["replay"] = mutated(rng, replay)
    return metadata
