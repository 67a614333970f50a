"""Every error torchatlas raises on purpose. Each is also the built-in error a caller would expect.

    AtlasError                     catch this one to catch them all
    ├── CaptureError               watching, tracing or replaying a program failed
    ├── AnalysisError              ValueError: a question that this graph, or a formula, has no answer to
    ├── InvalidModelError          TypeError: not something we can run
    ├── InvalidInputError          TypeError: the inputs do not fit the call
    │   └── InputMismatchError     RuntimeError: the model began to run, and torch refused their shape or dtype
    ├── UnknownNameError           KeyError: no entry of that name
    │   └── NodeNotFoundError      no such node, value or scope in the graph
    ├── StateError                 RuntimeError: called at the wrong moment
    ├── PipelineError              RuntimeError: a process of a pipeline failed, died or did not end
    ├── NotAvailableError          NotImplementedError: we cannot do this (yet)
    ├── MissingDependencyError     ImportError: an optional package is not installed
    ├── NotFiniteError             ArithmeticError: a node made NaN or infinity, and was asked not to
    ├── OutOfMemoryError           MemoryError: the program or its recording did not fit
    ├── FileSystemError            OSError: a file could not be read or written
    └── FileFormatError            ValueError: a file is not what its suffix says
        └── NewerVersionError      written by a newer torchatlas

and one warning:

    UntestedVersionWarning         UserWarning: this version of torch was never tested

A message says what happened, where, what was tried and one next step; the cause stays chained (`raise ... from`).

>>> str(NodeNotFoundError("no node 'conv3'; did you mean 'conv2'?"))
"no node 'conv3'; did you mean 'conv2'?"
"""

from __future__ import annotations

from typing import Any

from torchatlas.escapes import clean_text


class AtlasError(Exception):
    """The root of all errors of torchatlas. Catch it to handle any of them; it is never raised itself.

    `partial` holds the graph of what was recorded up to then, where there is one.
    """

    partial: Any = None

    def __str__(self) -> str:
        """The message. It may quote names and texts of files and programs, and Python prints it as it is."""
        return clean_text(Exception.__str__(self))  # KeyError's own shows quotes around it and \\n for line ends


class CaptureError(AtlasError):
    """A program failed, or did something we cannot follow, while it was watched, traced or replayed.

    Read `__cause__` for the program's own error.
    """

    def __init__(self, *args: object, partial: Any = None) -> None:
        super().__init__(*args)
        self.partial = partial


class AnalysisError(AtlasError, ValueError):
    """A graph does not hold what a question about it needs, or a formula failed on one of its nodes."""


class InvalidModelError(AtlasError, TypeError):
    """The model is not something we can run. Pass an `nn.Module` or a callable, not a class or a state dict."""


class InvalidInputError(AtlasError, TypeError):
    """The example inputs do not fit the model or the call. Compare them with the signature the message shows."""


class InputMismatchError(InvalidInputError, RuntimeError):
    """Torch refused what the inputs led to. The message names the module and the line; `__cause__` is torch's error."""


class UnknownNameError(AtlasError, KeyError):
    """A name (of a format, a device, a diagnosis ...) that nobody registered. The message lists near names."""


class NodeNotFoundError(UnknownNameError):
    """The graph has no node, value or scope of that name. Look at `graph.nodes` or `graph.scopes` for the names."""


class StateError(AtlasError, RuntimeError):
    """A call came at the wrong moment, such as stop before start. The message names the call that must come first."""


class PipelineError(AtlasError, RuntimeError):
    """A process of a pipeline failed, died or did not end in time; the others were ended. The message says which."""


class NotAvailableError(AtlasError, NotImplementedError):
    """This graph, platform or version cannot do what was asked. The message says what can be done instead."""


class MissingDependencyError(AtlasError, ImportError):
    """An optional package is not installed. The message holds the command that installs it."""


class NotFiniteError(AtlasError, ArithmeticError):
    """A node made NaN or infinity where `check_finite` forbids it. The message names the node."""


class OutOfMemoryError(AtlasError, MemoryError):
    """The program or its recording did not fit in memory. Use smaller inputs, record fewer values, or `fake=True`."""


class FileSystemError(AtlasError, OSError):
    """A file could not be read or written. Check the path, the permissions and the free space."""


class FileFormatError(AtlasError, ValueError):
    """A file is damaged, or not of the format its suffix says. Write it again, or correct the suffix."""


class NewerVersionError(FileFormatError):
    """The file was written by a newer torchatlas than this one. Upgrade torchatlas to read it."""


class UntestedVersionWarning(UserWarning):
    """Torch is older or newer than what torchatlas was tested with. Said once, when torchatlas first needs torch."""
