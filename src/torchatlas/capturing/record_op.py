"""The function that records one operator: Python code, written once per operator from its schema.

Walking a schema costs as much as a small op, so it is done once. The generated function reads the tensor arguments by
position, calls the operator and appends one row (row_schema.py) to the recording. It reads what it needs of a recorder
as variables of an enclosing function, its environment: these are as fast as locals, in the first recording as in the
hundredth. Binding the code to another recorder costs next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from textwrap import indent
from typing import Any

import torch

from torchatlas.capturing.collectives import WRAPS, is_group, is_reduction
from torchatlas.capturing.frames import GENERATED, USER_LINE_CODE
from torchatlas.capturing.row_schema import RECOMPUTING, OpRow, Plan, Slot
from torchatlas.operations import Operator, of
from torchatlas.torch_private import OpOverload

Run = Callable[[Any, Any], Any]  # (args, kwargs) -> the result

_PLANS: dict[int, Plan] = {}  # by id of the operator, which its plan keeps alive
_FACTORIES: dict[tuple[Plan, bool, bool], Callable[..., Run]] = {}


def plan_for(operator: Any) -> Plan:
    """The plan of an operator, made once per process."""
    plan = _PLANS.get(id(operator))
    if plan is None:
        plan = _PLANS[id(operator)] = _make_plan(operator)
    return plan


def recording_function(plan: Plan, number: int, environment: Mapping[str, Any]) -> Run:
    """The function that runs an operator and records it, in rows that begin with `number`.

    `environment` holds the variables it may read. Their names and order are the same for all recorders. `guard`, if
    there is one, is called before a write with what will be written; `keep` after each op with the result and with
    what was written.
    """
    variant = (plan, environment["guard"] is not None, environment["keep"] is not None)
    factory = _FACTORIES.get(variant)
    if factory is None:
        factory = _FACTORIES[variant] = _compiled(_source(*variant), environment, plan.name)
    call = plan.operator._op if type(plan.operator) is OpOverload else plan.operator
    return factory(*environment.values(), call, number)


def _compiled(source: str, environment: Iterable[str], name: str) -> Callable[..., Run]:
    """A function of the variables in the environment that returns the recording function."""
    body = "\n".join("  " + line for line in source.splitlines())
    text = f"def make({', '.join(environment)}, call, number):\n{body}\n  return run\n"
    namespace: dict[str, Any] = {}
    exec(compile(text, f"{GENERATED}{name}>", "exec"), namespace)  # our own text, made of operator schemas
    factory: Callable[..., Run] = namespace["make"]
    return factory


def operator_name(operator: Any) -> str:
    """aten.add.Tensor; higher-order operators by their own name."""
    return str(operator) if isinstance(operator, OpOverload) else f"higher_order.{operator}"


# -- plans -------------------------------------------------------------------------------------------------------------


def _make_plan(operator: Any) -> Plan:
    name, schema = operator_name(operator), getattr(operator, "_schema", None)
    facts = of(name)
    if schema is not None and facts.bookkeeping:
        return Plan(operator, name, bookkeeping=True)
    slots, others, readable = _read_schema(schema, facts) if schema is not None else ((), (), False)
    if schema is None or not readable:
        return Plan(operator, name, others=(0,), readable=False)
    return Plan(
        operator,
        name,
        slots,
        others,
        has_keywords=any(argument.kwarg_only for argument in schema.arguments),
        hidden=_hidden_writes(schema, facts),
        changes_layout=torch.Tag.inplace_view in operator.tags,
        required=_required(schema),
    )


_ONE, _MANY = ("Tensor", "Optional[Tensor]"), ("List[Tensor]", "List[Optional[Tensor]]", "Optional[List[Tensor]]")
_NESTED = ("List[List[Tensor]]",)


def _read_schema(schema: Any, facts: Operator) -> tuple[tuple[Slot, ...], tuple[int, ...], bool]:
    slots, others = [], []
    for position, argument in enumerate(schema.arguments):
        kind = str(argument.type)
        if "Tensor" not in kind:
            if not argument.kwarg_only:
                others.append(position)
            continue
        if kind not in _ONE + _MANY + _NESTED:
            return (), (), False
        written = argument.alias_info is not None and argument.alias_info.is_write
        overwritten = written and (argument.kwarg_only or (facts.overwrites and position == 0))
        overwritten |= argument.name == facts.fills
        written |= overwritten or argument.name == facts.updates
        slot_position = None if argument.kwarg_only else position
        slots.append(Slot(argument.name, slot_position, kind not in _ONE, written, overwritten, kind in _NESTED))
    if any("Tensor" in str(item.type) and str(item.type) not in _ONE + _MANY + _NESTED for item in schema.returns):
        return (), (), False
    return tuple(slots), tuple(others), True


def _hidden_writes(schema: Any, facts: Operator) -> tuple[tuple[int, ...], int] | None:
    """The positions of arguments that are written unannounced, and of the flag that switches the writing on."""
    if facts.hidden_writes is None:
        return None
    (written, flag), names = facts.hidden_writes, [argument.name for argument in schema.arguments]
    return tuple(map(names.index, written)), names.index(flag)


def _required(schema: Any) -> int:
    positional = [argument for argument in schema.arguments if not argument.kwarg_only]
    return next((i for i, argument in enumerate(positional) if argument.has_default_value()), len(positional))


# -- code --------------------------------------------------------------------------------------------------------------

# How the generated code computes each field. With a backward node running and gradients disabled there is no user line
# to find: it is the forward node's. In a step of one of torch's optimizers it is the line of the step. With gradients
# enabled it may be a checkpoint that recomputes, or a backward pass that builds a graph.
_EXPRESSIONS = {
    "plan": "number",
    "start_ns": "t0",
    "end_ns": "t1",
    "next_sequence_nr": "sequence",
    "backward_nr": "back",
    "call": "current[0]",
    "code": "code",
    "instruction": "at",
    "grad_mode": "grad",
    "needs_grad": "needs",
    "callers": "-1",  # a dispatch mode is not told of composite operators
}
_FIELDS = [_EXPRESSIONS[name] for name in OpRow._fields]
_FRAME = f"""\
  node = current_node(); code = None; at = sequence = 0; back = None; grad = grad_enabled()
  if node is not None: back = node._sequence_nr()
  if node is None or grad:
    sequence = next_number()
    if current[1] is not None: code, at = current[1]
    else:
{indent(USER_LINE_CODE, 6 * " ")}    if node is not None and recomputing(): grad = {RECOMPUTING}"""

_CALL = """\
  t0 = now()
  try: out = call(*args, **kwargs) if kwargs else call(*args)
  except BaseException as error:
    failed(number, error, current[0], code, at); {after}
  t1 = now()"""


def _source(plan: Plan, guarded: bool, kept: bool) -> str:
    """The text of the recording function."""
    if not plan.readable:
        return _source_without_schema(kept)
    schema = plan.operator._schema
    positional = [argument for argument in schema.arguments if not argument.kwarg_only]
    required = plan.required
    lines = ["def run(args, kwargs):"]
    if len(positional) > required:
        lines.append("  given = len(args)")
    for i, slot in enumerate(plan.slots):
        lines += _read_slot(i, slot, required)
    lines += [*_FRAME.splitlines(), f"  needs = grad and ({_requires_grad(plan)})"]
    if guarded:
        lines += _guard_lines(schema, plan)
    # What may have another layout afterwards. An op that raises may have given it one before it did.
    relaid = [f"reshaped(x{i})" for i, slot in enumerate(plan.slots) if slot.position is None and slot.written]
    relaid += ["forget(args[0])"] if plan.changes_layout else []
    lines += [_CALL.format(after="; ".join([*relaid, "raise"])), *(f"  {line}" for line in relaid)]
    lines += _read_result(schema)
    if kept:
        lines.append("  keep(None, [])" if of(plan.name).asynchronous else f"  keep(out, {_written(plan)})")
    row = [*_FIELDS, *(f"s{i}" for i in range(len(plan.slots)))]
    if plan.others:
        row.append(_other_arguments(plan, required, positional))
    if plan.has_keywords:
        tensors = sorted(slot.name for slot in plan.slots if slot.position is None)
        row.append(f"{{k: v for k, v in kwargs.items() if k not in {tensors!r}}}" if tensors else "kwargs")
    lines += [f"  extend(({', '.join(row)}, o))", "  return out"]
    return "\n".join(lines)


def _source_without_schema(kept: bool) -> str:
    """The text for an operator whose schema cannot be read: it walks the arguments for tensors."""
    lines = ["def run(args, kwargs):", "  tensors = []", "  structure = tensors_out((args, kwargs or {}), tensors)"]
    lines += [_FRAME, "  needs = False", _CALL.format(after="raise")]
    if kept:
        lines.append("  keep(out, [])")
    lines += [f"  extend(({', '.join(_FIELDS)}, (tensors, structure), results(out)))", "  return out"]
    return "\n".join(lines)


def _read_slot(i: int, slot: Slot, required: int) -> list[str]:
    if slot.position is None:
        lines = [f"  x{i} = kwargs.get({slot.name!r})"]
    elif slot.position < required:
        lines = [f"  x{i} = args[{slot.position}]"]
    else:
        lines = [f"  x{i} = args[{slot.position}] if given > {slot.position} else kwargs.get({slot.name!r})"]
    if slot.nested:
        return [*lines, f"  s{i} = [[number_of(y) for y in z] for z in x{i}]"]
    if slot.many:
        return [*lines, f"  s{i} = None if x{i} is None else [None if y is None else number_of(y) for y in x{i}]"]
    known = f"s{i} = e[1] if e is not None and e[0]() is x{i} else (None if x{i} is None else register(x{i}, True))"
    return [*lines, f"  e = known(id(x{i})); {known}"]


def _other_arguments(plan: Plan, required: int, positional: list[Any]) -> str:
    first, last = plan.others[0], plan.others[-1]
    words = {p: "group" for p in plan.others if is_group(positional[p])}
    words |= {p: "reduction" for p in plan.others if is_reduction(positional[p])}
    words |= {p: "storage" for p in plan.others if str(positional[p].type) == "Storage"}  # kept, it could not die
    if last - first + 1 == len(plan.others) and last == len(positional) - 1 and not words:
        return f"args[{first}:]"
    read = {p: f"{words[p]}(args[{p}])" if p in words else f"args[{p}]" for p in plan.others}
    parts = [read[p] if p < required else f"{read[p]} if given > {p} else OMITTED" for p in plan.others]
    return f"({', '.join(parts)},)"


def _read_result(schema: Any) -> list[str]:
    kinds = [str(item.type) for item in schema.returns]
    if not any("Tensor" in kind for kind in kinds):
        return ["  o = None"]
    if schema.name == "aten::_efficientzerotensor":
        return ["  o = made_without_memory(out)"]
    if schema.name == WRAPS:
        return ["  o = number_of_result(getattr(out, 'elem', out))"]
    if kinds == ["Tensor"]:
        return ["  e = known(id(out)); o = e[1] if e is not None and e[0]() is out else register(out)"]
    if len(kinds) == 1:
        return ["  o = None if out is None else [None if y is None else number_of_result(y) for y in out]"]
    return ["  o = [results(y) for y in out]"]


def _requires_grad(plan: Plan) -> str:
    """An expression that is true if any tensor argument requires a gradient."""
    parts = []
    for i, slot in enumerate(plan.slots):
        if slot.nested:
            parts.append(f"any(y.requires_grad for z in x{i} for y in z)")
        elif slot.many:
            parts.append(f"(s{i} is not None and any(y is not None and y.requires_grad for y in x{i}))")
        elif slot.position is not None:  # a number in the place of a tensor has no such thing
            parts.append(f"(type(s{i}) is int and x{i}.requires_grad)")
    return " or ".join(parts) or "False"


def _written(plan: Plan) -> str:
    """An expression for the list of the arguments that an operator writes."""
    expressions = [f"x{i}" for i, slot in enumerate(plan.slots) if slot.written]
    if plan.hidden is not None:
        positions, flag = plan.hidden
        expressions += [f"args[{position}] if args[{flag}] else None" for position in positions]
    return f"[{', '.join(expressions)}]"


def _guard_lines(schema: Any, plan: Plan) -> list[str]:
    lines = []
    for position, argument in enumerate(schema.arguments):
        if "Generator" in str(argument.type):
            default = "None" if argument.kwarg_only else f"args[{position}] if len(args) > {position} else None"
            lines.append(f"  guard(kwargs.get({argument.name!r}, {default}))")
    if (written := _written(plan)) != "[]":
        lines.append(f"  guard({written})")
    return lines
