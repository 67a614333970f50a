"""The promised names -> pages of the API reference, one for each subject, and one for the errors."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum

from sitegen.docstrings import Docstring, parsed
from sitegen.promised import Member, Name, promised_names
from sitegen.words import WORDS
from torchatlas import errors

# Which page a name stands on: the first whose module begins so. A new name falls onto the page of its room.
SUBJECTS = {
    "recording": ("Recording", ["capturing", "graph.timing", "runs"]),
    "graph": ("The graph", ["graph", ""]),
    "cost": (
        "Cost and comparison",
        ["analysis.cost", "analysis.diff", "analysis.fail_on", "analysis.devices", "operations"],
    ),
    "memory": ("Memory and checkpointing", ["analysis", "checkpoint_plans"]),
    "doctor": ("The doctor", ["diagnosis"]),
    "backward": ("Backward", ["autograd"]),
    "trace": ("Traced models and replay", ["execute"]),
    "show": ("Tables, pictures, the viewer", ["render"]),
    "partition": ("Partitions and pipelines", ["partition", "pipeline"]),
    "integrations": ("In your loop, your CI, other tools", ["integrations", "export"]),
    "compat": ("Names of other packages", ["compat"]),
    "engine": ("The readable autograd engine", ["autograd.engine"]),
}
HIDDEN_BASES = ("Shown", "ShownPart", "Report", "Printable", "Bracket", "tuple")


def subject_of(name: Name) -> str:
    if inspect.ismodule(name.item) or (inspect.isclass(name.item) and issubclass(name.item, errors.AtlasError)):
        return "errors"
    where = inspect.unwrap(name.item).__module__.removeprefix("torchatlas").removeprefix(".") + "."
    rooms = [(room, subject) for subject, (_, given) in SUBJECTS.items() for room in given]
    found = [(len(room), subject) for room, subject in rooms if where.startswith(f"{room}.") or where == room + "."]
    if not found:
        raise LookupError(f"no page of the API reference takes {name.full_name}; add its room to SUBJECTS")
    return max(found)[1]


def own_names() -> list[Name]:
    """The names that are not other names of something."""
    return [name for name in promised_names() if not name.same_as]


def addresses() -> dict[str, str]:
    """Page and anchor of every promised name and member, by what code calls it: `atlas.capture`, `Graph.where`."""
    known: dict[str, str] = {}
    for name in promised_names():
        page = f"reference/{subject_of(name)}.md"
        target = name.same_as.rsplit(".", 1)[-1] or name.name
        if inspect.ismodule(name.item):
            known[f"torchatlas.{name.name}"] = known[f"atlas.{name.name}"] = page
            for member in name.members:
                for prefix in ("", "errors.", "atlas.errors.", "torchatlas.errors."):
                    known.setdefault(prefix + member.name, f"{page}#{member.name}")
            continue
        address = f"{page}#{target}"
        known[name.full_name] = known.setdefault(name.name, address)
        if name.module == "torchatlas":
            known[f"atlas.{name.name}"] = address
        for member in name.members:
            has_heading = member.is_method and member is not name.constructor
            place = f"{page}#{target}.{member.name.strip('_')}" if has_heading else address
            known[f"{name.name}.{member.name}"] = place
            if name.module == "torchatlas":
                known[f"atlas.{name.name}.{member.name}"] = place
    return known


def pages() -> Iterator[tuple[str, str]]:
    """Path and Markdown of every page of the reference."""
    by_subject: dict[str, list[Name]] = {}
    for name in own_names():
        by_subject.setdefault(subject_of(name), []).append(name)
    for subject, (title, _) in SUBJECTS.items():
        yield f"reference/{subject}.md", page(title, by_subject[subject])
    yield "reference/errors.md", errors_page()
    yield "reference/index.md", index_page(by_subject)


def index_page(by_subject: dict[str, list[Name]]) -> str:
    lines = [
        "# What is promised?",
        "",
        "`import torchatlas as atlas` has the functions and classes that you call. `torchatlas.types` has what they",
        "return, for annotations. These names, their arguments and their members stay as they are; a name that goes is",
        "kept for one minor version. Everything else may change in any release.",
    ]
    for subject, (title, _) in SUBJECTS.items():
        lines += ["", f"## [{title}]({subject}.md)", "", "| name | what it is |", "|---|---|"]
        for name in _calls_first(by_subject[subject]):
            summary = parsed(inspect.getdoc(name.item)).summary
            lines.append(f"| [`{_called(name)}`]({subject}.md#{name.name}) | {_cell(_sentence(summary))} |")
    return "\n".join(lines) + "\n"


def page(title: str, names: list[Name]) -> str:
    return f"# {title}\n\n" + "\n".join(described(name) for name in _calls_first(names))


def _calls_first(names: list[Name]) -> list[Name]:
    """What users call, then what that returns."""
    return sorted(names, key=lambda name: (name.module == "torchatlas.types", inspect.isclass(name.item)))


def _called(name: Name) -> str:
    return f"atlas.{name.name}" if name.module == "torchatlas" else name.full_name.removeprefix("torchatlas.")


# -- one name ----------------------------------------------------------------------------------------------------------


def described(name: Name) -> str:
    lines = [f"## `{_called(name)}` {{ #{name.name} }}", ""]
    doc = parsed(inspect.getdoc(name.item))
    if name.signatures:
        lines += [_code("\n".join(_wrapped(signature) for signature in name.signatures)), "", *_doc(doc)]
        return "\n".join(lines) + "\n"
    bases = [base for base in name.bases.split(", ") if base and base not in HIDDEN_BASES and "Names" not in base]
    constructor = name.constructor
    if constructor is not None:
        lines += [_code(_wrapped(constructor.text.replace(constructor.name, name.name, 1))), ""]
    if bases and not issubclass(name.item, Enum):
        lines += [f"A kind of {' and '.join(f'`{base}`' for base in bases)}.", ""]
    lines += _doc(doc, name.item)
    fields = [member for member in name.members if not member.is_method]
    if fields:
        lines += [
            "| member | type | what it is |" if not _is_enum(name) else "| member | value | meaning |",
            "|---|---|---|",
        ]
        lines += [_row(member, _is_enum(name), doc.args.get(member.name, "")) for member in fields]
        lines.append("")
    for member in name.members:
        if member.is_method and member is not constructor:
            lines += [*_method(name, member)]
    return "\n".join(lines) + "\n"


def _is_enum(name: Name) -> bool:
    return issubclass(name.item, Enum)


def _row(member: Member, is_value: bool, argument: str) -> str:
    if " = " in member.text and is_value:
        kind = member.text.split(" = ", 1)[1]
    else:
        kind = member.text.split(": ", 1)[1]
    text = member.doc or argument or ("" if is_value else WORDS.get(member.name, ""))
    return f"| `{member.name}` | `{_pipes(kind)}` | {_cell(text)} |"


DUNDER = {
    "__getitem__": "{0}[{1}]",
    "__contains__": "{1} in {0}",
    "__iter__": "iter({0})",
    "__len__": "len({0})",
    "__call__": "{0}(...)",
}


def _method(owner: Name, member: Member) -> Iterator[str]:
    variable = re.sub(r"(?<!^)(?=[A-Z])", "_", owner.name).lower().split("_")[-1]
    heading = f"{owner.name}.{member.name}"
    if member.name in DUNDER:
        argument = re.search(r"\((\w*)", member.text)[1]  # type: ignore[index]
        heading = DUNDER[member.name].format(variable, argument)
    yield f"### `{heading}` {{ #{owner.name}.{member.name.strip('_')} }}"
    yield ""
    yield _code(_wrapped(re.sub(r"^(classmethod|staticmethod) ", "", member.text)))
    yield ""
    yield from _doc(parsed(member.doc))


def _doc(doc: Docstring, item: object = None) -> Iterator[str]:
    yield _body(doc.text)
    yield ""
    if doc.args:
        yield "| parameter | meaning |"
        yield "|---|---|"
        for name, text in doc.args.items():
            yield f"| `{name}` | {_cell(text)} |"
        yield ""
    if doc.returns:
        yield f"**Returns** {_lower(doc.returns)}"
        yield ""
    if doc.raises:
        yield "**Raises**"
        yield ""
        for name, text in doc.raises.items():
            yield f"- `{name}`: {text}"
        yield ""
    if doc.example:
        yield _body(doc.example)
        yield ""


def _lower(text: str) -> str:
    """The beginning of a sentence, to go on with inside one."""
    first = text.split()[0]
    return text[0].lower() + text[1:] if first[1:].islower() or len(first) == 1 else text


def _body(text: str) -> str:
    """A docstring's own Markdown, with its doctests as blocks of code and what is indented as it stands."""
    paragraphs = []
    for paragraph in re.split(r"\n\n+", text):
        if paragraph.lstrip().startswith(">>>"):
            paragraphs.append(f"```pycon\n{inspect.cleandoc(paragraph)}\n```")
        else:
            paragraphs.append(paragraph)
    return re.sub(r"\n```\n\n```pycon\n", "\n\n", "\n\n".join(paragraphs))


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _wrapped(signature: str, width: int = 88) -> str:
    """A signature with a parameter per line if it is long."""
    if len(signature) <= width:
        return signature
    head, rest = signature.split("(", 1)
    depth, parts, begin, end = 0, [], 0, len(rest)
    quote = ""
    for at, char in enumerate(rest):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}" and depth:
            depth -= 1
        elif char == ")":
            end = at
            break
        elif char == "," and not depth:
            parts.append(rest[begin:at].strip())
            begin = at + 1
    parts.append(rest[begin:end].strip())
    return "\n".join([f"{head}(", *(f"    {part}," for part in parts if part), f"){rest[end + 1 :]}"])


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _pipes(" ".join(text.split()))


def _pipes(text: str) -> str:
    return text.replace("|", "\\|")


# -- errors ------------------------------------------------------------------------------------------------------------


def errors_page() -> str:
    (module,) = [name for name in own_names() if inspect.ismodule(name.item)]
    text = inspect.getdoc(errors) or ""
    tree = text.split("\n\n")[1]
    lines = [
        "# Which errors are there, and what do I do?",
        "",
        "Every error that torchatlas raises on purpose is an `AtlasError`, and also the built-in error that a caller",
        "would expect. A message says what happened, where, and one next step; the error of your program or of torch",
        "stays chained (`__cause__`).",
        "",
        f"```text\n{inspect.cleandoc(tree)}\n```",
    ]
    for member in module.members:
        doc = parsed(member.doc)
        bases = re.search(r"\((.*)\)", member.text)[1]  # type: ignore[index]
        kinds = " and ".join(f"`{base}`" for base in bases.split(", "))
        lines += ["", f"## {member.name} {{ #{member.name} }}", "", f"*A kind of {kinds}.*", ""]
        is_code = doc.example.startswith(">>>")
        lines += [_body(doc.text), "", _body(doc.example) if is_code else f"```text\n{doc.example}\n```"]
    return "\n".join(lines) + "\n"
