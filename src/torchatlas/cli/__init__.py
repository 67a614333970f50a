"""The command line: one file per verb, found by listing this folder. A verb's file holds a click command `command`.

Files whose name begins with an underscore are shared by verbs and are none themselves.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from torchatlas import __version__
from torchatlas.escapes import clean_text
from torchatlas.registry import did_you_mean


class Verbs(click.Group):
    """Imports a verb when it is named or listed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = importlib.import_module(f"{__name__}.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does; an unknown verb is met with the near one, and a file or a model with what to do with it."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            hint = did_you_mean(args[0], self.list_commands(ctx))
            if not hint and (args[0].endswith((".py", ".atlas", ".json", ".html")) or ":" in args[0]):
                hint = f"; a verb comes first: torchatlas {'capture' if '.py' in args[0] else 'summary'} {args[0]}"
            error.message = f"{error.message.rstrip('.')}{hint or '.'}"  # type: ignore[misc]  # as below
            raise

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with _clean_messages():
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with _clean_messages():
            return super().invoke(ctx)


@contextmanager
def _clean_messages() -> Iterator[None]:
    """What click prints of an error is safe for a terminal: it may quote a file's name, or a program's message."""
    try:
        yield
    except click.ClickException as error:
        error.message = clean_text(error.message)  # type: ignore[misc]  # final for other people's exceptions
        raise


@click.command(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="torchatlas %(version)s")
def main() -> None:
    """Any PyTorch computation as one graph you can see, question and share."""
