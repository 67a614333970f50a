"""torchatlas completion SHELL: the script that teaches a shell to complete verbs, options, files and devices."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from torchatlas.cli._options import print_result, verb
from torchatlas.errors import NotAvailableError

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@verb
def command(shell: str, as_json: bool) -> None:
    """Print what makes a shell complete our verbs and options.

    Put it into the file that the shell reads when it starts; it takes effect in the next shell.

    \b
    bash:  torchatlas completion bash >> ~/.bashrc
    zsh:   torchatlas completion zsh >> ~/.zshrc
    fish:  torchatlas completion fish > ~/.config/fish/completions/torchatlas.fish
    """
    from torchatlas.cli import main

    kind = get_completion_class(shell)
    assert kind is not None
    try:
        script = kind(main, {}, "torchatlas", "_TORCHATLAS_COMPLETE").source()
    except (RuntimeError, OSError) as error:  # click asks the shell for its version
        raise NotAvailableError(f"{shell} could not be asked for its version: {error}") from error
    print_result({"shell": shell, "script": script}, script, as_json)
