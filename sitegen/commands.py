"""The verbs of the command line -> their reference, from what click knows of them."""

from __future__ import annotations

import inspect

import click

from torchatlas.cli import main


def page() -> str:
    context = click.Context(main, info_name="torchatlas")
    lines = [
        "# Which verbs and options are there?",
        "",
        "Made from the commands themselves; `torchatlas VERB --help` prints the same.",
        "[What can I do on the command line?](../command-line.md) shows how to use them.",
        "",
        "| verb | what it does |",
        "|---|---|",
    ]
    verbs = {name: main.get_command(context, name) for name in main.list_commands(context)}
    for name, command in verbs.items():
        assert command is not None
        if not command.hidden:
            lines.append(f"| [`{name}`](#{name}) | {_cell(command.get_short_help_str(limit=200))} |")
    for name, command in verbs.items():
        assert command is not None
        if not command.hidden:
            lines += ["", *_verb(command, click.Context(command, info_name=name, parent=context))]
    return "\n".join(lines) + "\n"


def _verb(command: click.Command, context: click.Context) -> list[str]:
    name = context.info_name
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    lines = [f"## `torchatlas {name}` {{ #{name} }}", "", f"```text\n{usage}\n```", "", _help(command.help or "")]
    records = [(parameter, parameter.get_help_record(context)) for parameter in command.get_params(context)]
    rows = [
        f"| {_names(record[0])} | {_cell(record[1])} |"
        for parameter, record in records
        if record is not None and isinstance(parameter, click.Option)
    ]
    if isinstance(command, click.Group):
        for one in command.list_commands(context):
            found = command.get_command(context, one)
            if found is not None and not found.hidden:
                rows.append(f"| `{one}` | {_cell(found.get_short_help_str(limit=200))} |")
    return [*lines, "", "| option | meaning |", "|---|---|", *rows]


def _help(text: str) -> str:
    """click's help as Markdown: a paragraph that begins with \\b keeps its line ends."""
    paragraphs = inspect.cleandoc(text.split("\f")[0]).split("\n\n")
    return "\n\n".join(
        f"```text\n{paragraph.removeprefix(chr(8)).strip(chr(10))}\n```" if paragraph.startswith("\b") else paragraph
        for paragraph in paragraphs
    )


def _names(text: str) -> str:
    return f"`{_pipes(text)}`"


def _cell(text: str) -> str:
    return _pipes(" ".join(text.split()).replace("<", "&lt;").replace("*", "\\*"))


def _pipes(text: str) -> str:
    return text.replace("|", "\\|")
