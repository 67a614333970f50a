"""Which role each storage has, and which name each value: a parameter, an input, an activation, a gradient ..."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from torchatlas.capturing.decode import BACKWARD, FORWARD, OPTIMIZER, OTHER, RECOMPUTE
from torchatlas.capturing.module_calls import Watch
from torchatlas.capturing.tensor_names import Named
from torchatlas.capturing.tensor_states import TensorStates
from torchatlas.graph.columns import PHASES, ROLES, Array
from torchatlas.graph.nouns import Role

ROLE: dict[str, int] = {role: ROLES.index(role) for role in Role}  # also by its name: a role is a string
_MADE_IN = {  # the role of what a node allocates
    FORWARD: ROLE[Role.ACTIVATION],
    RECOMPUTE: ROLE[Role.ACTIVATION],
    BACKWARD: ROLE[Role.TEMPORARY],
    OPTIMIZER: ROLE[Role.TEMPORARY],
    OTHER: ROLE[Role.TEMPORARY],
}


def storage_roles(
    states: TensorStates, watch: Watch, *, phases: Array, inputs: Iterable[int], lifted: Iterable[int], outside: Role
) -> Array:
    """A role for every storage.

    `phases` are those of the nodes. `inputs` and `lifted` are tensors: those passed in, and those that
    `torch.tensor(...)` made of Python data. `outside` is the role of all else that no node made.
    """
    storage_of, born = states.storage_of, np.array(states.born, np.int64)
    made_in = np.array([_MADE_IN[phase] for phase in range(len(PHASES))])
    role = np.where(born >= 0, made_in[np.append(phases, 0)[born]], ROLE[outside])
    role[list(states.gradients)] = ROLE[Role.GRADIENT]
    for number in lifted:
        role[storage_of[number]] = ROLE[Role.CONSTANT]
    for number in inputs:
        if born[storage_of[number]] < 0:
            role[storage_of[number]] = ROLE[Role.INPUT]
    for number, named in watch.names.tensors.items():
        role[storage_of[number]] = ROLE[named.role]
    for storage, named in watch.names.storages.items():
        role[storage] = ROLE[named.role]
    return role


def value_names(states: TensorStates, watch: Watch, row: Callable[[str], int]) -> Array:
    """The row of its name for every value that has one, else -1. `row` enters a name into the table."""
    prefixes, storage_of = root_prefixes(watch), states.storage_of

    def name_row(named: Named) -> int:
        name = full_name(prefixes, named)
        return row(name) if name else -1

    of_tensor: dict[int, int] = {}
    of_storage: dict[int, int] = {}
    crowded: set[int] = set()  # storages that hold several named tensors
    for number, named in watch.names.tensors.items():
        storage = storage_of[number]
        if (name := name_row(named)) >= 0:
            of_tensor[number] = name
            if storage in of_storage and _is_another_part(states, storage, number):
                crowded.add(storage)
            of_storage.setdefault(storage, name)
    for storage, named in watch.names.storages.items():
        if (name := name_row(named)) >= 0:
            of_storage.setdefault(storage, name)
    crowded |= watch.names.shared
    for number, named in watch.names.pieces.items():
        if storage_of[number] in crowded and (name := name_row(named)) >= 0:
            of_tensor.setdefault(number, name)
    by_storage = _table(len(states.born), {s: name for s, name in of_storage.items() if s not in crowded})
    by_tensor = _table(len(storage_of), of_tensor)
    tensor = np.array(states.value_tensor, np.int64)
    own = by_tensor[tensor]
    return np.where(own >= 0, own, by_storage[np.array(storage_of, np.int64)[tensor]])


def _table(count: int, entries: dict[int, int]) -> Array:
    """An array of entries by position, -1 where there is none; never empty, so that it can be indexed."""
    table = np.full(count + 1, -1, np.int64)
    table[list(entries)] = list(entries.values())
    return table


def _is_another_part(states: TensorStates, storage: int, number: int) -> bool:
    """True if a second named tensor on a storage is another part of it, not the same tied weight."""
    origin = states.origin[storage]
    return origin >= 0 and states.layout_key(states.value_tensor[origin]) != states.layout_key(number)


def full_name(prefixes: dict[int, str], named: Named) -> str:
    """The name of a tensor, with the prefix of its tree of modules."""
    prefix = prefixes.get(named.root, "")
    return f"{prefix}.{named.name}" if prefix and named.name else named.name or prefix


def root_prefixes(watch: Watch) -> dict[int, str]:
    """The prefix of the names in each tree of modules: empty for the model, or for the only tree there is."""
    roots = [number for number, owner in enumerate(watch.owners) if owner.root == number]
    modules = [number for number in roots if watch.owners[number].kind == "module"]
    main = modules[0] if modules and (watch.named or len(modules) == 1) else None
    prefixes: dict[int, str] = {}
    seen: dict[str, int] = {}
    for number in roots:
        if number == main:
            prefixes[number] = ""
            continue
        kind = watch.owners[number].type
        seen[kind] = seen.get(kind, -1) + 1
        prefixes[number] = f"{kind}_{seen[kind]}" if seen[kind] else kind
    return prefixes


def parameter_names(watch: Watch) -> dict[int, str]:
    """The names of the parameters of all modules that were seen and are still there, by the ids of the tensors."""
    prefixes, names = root_prefixes(watch), dict[int, str]()
    for owner in watch.owners:
        module = owner.reference() if owner.kind == "module" else None
        for name, tensor in module._parameters.items() if module is not None else ():
            path = ".".join(part for part in (prefixes[owner.root], owner.path, name) if part)
            names.setdefault(id(tensor), path)
    return names
