"""Every error torchatlas raises on purpose. Each is also the built-in error a caller would expect.

    AtlasError                     catch this one to catch them all
    ├── CaptureError               watching, tracing or replaying a program failed
    ├── AnalysisError              ValueError: this graph has no answer to the question
    ├── InvalidModelError          TypeError: not something we can run
    ├── InvalidInputError          TypeError: the inputs do not fit the call
    │   └── InputMismatchError     RuntimeError: torch refused their shape or dtype
    ├── UnknownNameError           KeyError: no entry of that name
    │   └── NodeNotFoundError      no such node, value or scope in the graph
    ├── StateError                 RuntimeError: called at the wrong moment
    ├── PipelineError              RuntimeError: a process of a pipeline failed
    ├── NotAvailableError          NotImplementedError: we cannot do this (yet)
    ├── MissingDependencyError     ImportError: an optional package is not installed
    ├── NotFiniteError             ArithmeticError: a node made NaN or infinity
    ├── OutOfMemoryError           MemoryError: the values of a traced model did not fit
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
    """The root of all errors of torchatlas. It is never raised itself.

    Catch it to handle any of them. `partial` holds the graph of what was recorded up to then, where there is one.

    Example:
        >>> import torchatlas as atlas
        >>> try:
        ...     atlas.load("nowhere.atlas")
        ... except atlas.AtlasError as error:
        ...     print(type(error).__name__, error)
        FileSystemError Cannot read nowhere.atlas: No such file or directory. The path is relative to ...
    """

    partial: Any = None

    def __str__(self) -> str:
        """The message. It may quote names and texts of files and programs, and Python prints it as it is."""
        return clean_text(Exception.__str__(self))  # KeyError's own shows quotes around it and \\n for line ends


class CaptureError(AtlasError):
    """A program failed, or did something we cannot follow, while it was watched, traced or replayed.

    Read `__cause__` for the program's own error, and do what the message proposes: a model that torch.export refuses
    can be captured.

    Example:
        >>> import torch, torchatlas as atlas
        >>> atlas.trace(torch.nn.Linear(4, 2), torch.ones(1, 5))
        Traceback (most recent call last):
        torchatlas.errors.CaptureError: torch.export cannot trace Linear: ... or record it with atlas.capture.
    """

    def __init__(self, *args: object, partial: Any = None) -> None:
        super().__init__(*args)
        self.partial = partial


class AnalysisError(AtlasError, ValueError):
    """A graph does not hold what a question about it needs, or a formula failed on one of its nodes.

    Record the graph again with what is missing (times, values, backward), or ask something else; the message says what.

    Example:
        >>> import torch, torchatlas as atlas
        >>> atlas.plot(atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4)), "gradients")
        Traceback (most recent call last):
        torchatlas.errors.AnalysisError: No gradient of a parameter was made in this graph. Capture it with
        backward=True.
    """


class InvalidModelError(AtlasError, TypeError):
    """The model is not something we can run.

    Pass an `nn.Module` or a function, not a state dict or the path of a file.

    Example:
        >>> import torch, torchatlas as atlas
        >>> atlas.capture(torch.nn.Linear(4, 2).state_dict(), torch.ones(1, 4))
        Traceback (most recent call last):
        torchatlas.errors.InvalidModelError: capture takes a torch.nn.Module or a function, not OrderedDict:
        atlas.capture(model, x).
    """


class InvalidInputError(AtlasError, TypeError):
    """The example inputs, or other arguments, do not fit the call.

    Compare them with the signature or the choices that the message shows.

    Example:
        >>> import torch, torchatlas as atlas
        >>> atlas.capture(torch.nn.Linear(4, 2))
        Traceback (most recent call last):
        torchatlas.errors.InvalidInputError: Linear takes (input: torch.Tensor) -> torch.Tensor, but was given ():
        missing a required argument: 'input'.
    """


class InputMismatchError(InvalidInputError, RuntimeError):
    """The model began to run, and the shape or dtype of an input led to something that torch or the trace refuses.

    Compare the input with what the named layer takes. `__cause__` is torch's error, where there is one.

    Example:
        >>> import torch, torchatlas as atlas
        >>> atlas.trace(torch.nn.Linear(4, 2), torch.ones(3, 4))(torch.ones(3, 5))
        Traceback (most recent call last):
        torchatlas.errors.InputMismatchError: input input has size 5 in dimension 1; this trace fixes it to 4
        (traced.input_sizes says why).
    """


class UnknownNameError(AtlasError, KeyError):
    """A name of a device, a measure, a diagnosis or a file format that is not registered.

    Take one of the names that the message lists.

    Example:
        >>> import torch, torchatlas as atlas
        >>> atlas.cost(atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4)), "a100")
        Traceback (most recent call last):
        torchatlas.errors.UnknownNameError: No device profile is named 'a100'; did you mean 'a100-40gb' or
        'a100-80gb'? Known: ...
    """


class NodeNotFoundError(UnknownNameError):
    """The graph has no node, value or scope of that name.

    Look at `graph.nodes` or `graph.scopes` for the names; the message proposes near ones.

    Example:
        >>> import torch, torchatlas as atlas
        >>> atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4))["addm"]
        Traceback (most recent call last):
        torchatlas.errors.NodeNotFoundError: no node or module is named 'addm'; did you mean 'addmm'?
    """


class StateError(AtlasError, RuntimeError):
    """A call came at the wrong moment, such as stop before start.

    Make the call that the message names first, or begin with a new object.

    Example:
        >>> import torchatlas as atlas
        >>> atlas.recording().stop()
        Traceback (most recent call last):
        torchatlas.errors.StateError: This recording is not running (it is new).
    """


class PipelineError(AtlasError, RuntimeError):
    """A process of a pipeline failed, died or did not end in time; the others were ended.

    The message says which rank it was and why. Debug it with a pipeline of one stage, `stages=1`.

    Example:
        The pipeline did not end within 300 s; rank 1 still ran and was ended. Give it more time, or look for a
        hang: ...
    """


class NotAvailableError(AtlasError, NotImplementedError):
    """This graph, platform or version cannot do what was asked.

    Do what the message proposes instead.

    Example:
        >>> import torch, torchatlas as atlas
        >>> graph = atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4))
        >>> atlas.GraphPartitioner().partition(graph).extract()
        Traceback (most recent call last):
        torchatlas.errors.NotAvailableError: A graph of source 'run' does not run by itself. Partition a
        torch.fx.GraphModule, a traced model or a model with its inputs instead...
    """


class MissingDependencyError(AtlasError, ImportError):
    """An optional package is not installed.

    Run the command that the message holds.

    Example:
        to_pandas() needs pandas: pip install 'torchatlas[pandas]'
    """


class NotFiniteError(AtlasError, ArithmeticError):
    """A node made NaN or infinity where `check_finite` forbids it.

    Look at what the named node took: `traced.predict(...)[name].inputs`.

    Example:
        >>> import torch, torchatlas as atlas
        >>> traced = atlas.trace(torch.nn.Linear(4, 2), torch.ones(3, 4))
        >>> traced.run(torch.full((3, 4), float("nan")), check_finite=True)
        Traceback (most recent call last):
        torchatlas.errors.NotFiniteError: 12 of 12 numbers are not finite after input (input).
    """


class OutOfMemoryError(AtlasError, MemoryError):
    """A traced model, or the values that were to be kept of it, did not fit into memory.

    Keep fewer values (`nodes=[...]`), write them to a file (`save=`), or take smaller inputs.

    Example:
        running the traced model failed at features.0.conv2d: OutOfMemoryError: CUDA out of memory.
        Keep fewer values, with nodes=[...], or take smaller inputs.
    """


class FileSystemError(AtlasError, OSError):
    """A file could not be read or written.

    Check the path, the permissions and the free space. No folder is created for you.

    Example:
        >>> import torch, torchatlas as atlas
        >>> atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4)).save("no folder/step.json")
        Traceback (most recent call last):
        torchatlas.errors.FileSystemError: Cannot write no folder/step.json: the folder no folder does not exist.
        Create it first.
    """


class FileFormatError(AtlasError, ValueError):
    """A file is damaged, or not of the format that its suffix says; or there is no format of that suffix.

    Write the file again, or correct the suffix.

    Example:
        >>> import torch, torchatlas as atlas
        >>> atlas.capture(torch.nn.Linear(4, 2), torch.ones(1, 4)).save("step.xls")
        Traceback (most recent call last):
        torchatlas.errors.FileFormatError: step.xls: the suffix '.xls' is no file format to write.
        Known: ...
    """


class NewerVersionError(FileFormatError):
    """A newer torchatlas than this one wrote the file.

    Upgrade torchatlas: `pip install --upgrade torchatlas`. Older files can always be read.

    Example:
        step.json: written in version 99 of the format; this torchatlas reads up to version 2. Upgrade torchatlas: pip
        install --upgrade torchatlas
    """


class UntestedVersionWarning(UserWarning):
    """Torch is older or newer than what torchatlas was tested with. Said once, when torchatlas first needs torch.

    Run `torchatlas selftest`: it says what works with this torch. Silence it with `warnings.filterwarnings("ignore",
    category=torchatlas.errors.UntestedVersionWarning)`.

    Example:
        torchatlas was tested with torch 2.10 to 2.15, not with 2.16.0. `torchatlas selftest` says what works.
    """
