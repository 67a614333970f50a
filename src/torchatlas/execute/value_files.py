"""Tensors one after another -> a safetensors file, without ever holding more than one of them."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from torchatlas.errors import FileSystemError, InvalidInputError
from torchatlas.files import replacing

_NAMES = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.int64: "I64",
    torch.uint64: "U64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.complex64: "C64",
}


class ValueFile:
    """A file in the making. It appears under its name when the block ends without an exception.

    The format begins with where everything lies, which is known in the end: until then the bytes wait in a second file
    beside it. What the format has no type for is not written; its metadata says so under "left out".
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = checked_path(path)
        self._header: dict[str, Any] = {}
        self._left_out: list[str] = []
        self._end = 0
        try:
            self._bytes: Any = tempfile.TemporaryFile(dir=self.path.parent)  # noqa: SIM115  # closed in __exit__
        except OSError as error:
            raise FileSystemError(f"cannot write {self.path}: {error.strerror or error}") from error

    def write(self, name: str, value: Any) -> None:
        """A tensor under its name; several under "name:0", "name:1"; nothing for what is no tensor."""
        if isinstance(value, (list, tuple)):
            for index, item in enumerate(value):
                self.write(f"{name}:{index}", item)
        elif isinstance(value, torch.Tensor):
            self._write(name, value)

    def _write(self, name: str, tensor: torch.Tensor) -> None:
        dtype = _NAMES.get(tensor.dtype)
        if dtype is None or tensor.layout is not torch.strided or tensor.is_nested:
            self._left_out.append(f"{name}: {tensor.dtype}, {tensor.layout}".replace("torch.", ""))
            return
        plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
        size = plain.numel() * plain.element_size()
        if size:
            self._bytes.write(plain.reshape(-1).view(torch.uint8).numpy().data)
        place = [self._end, self._end + size]
        self._header[name] = {"dtype": dtype, "shape": list(plain.shape), "data_offsets": place}
        self._end += size

    def __enter__(self) -> ValueFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._bytes:
            if error is None:
                self._finish()

    def _finish(self) -> None:
        made_by = {"made by": "torchatlas"}
        if self._left_out:
            made_by["left out"] = "; ".join(self._left_out)
        text = json.dumps({"__metadata__": made_by, **self._header}).encode()
        text += b" " * (-len(text) % 8)  # the tensors begin at a multiple of 8
        try:
            with replacing(self.path) as file:
                file.write(len(text).to_bytes(8, "little") + text)
                self._bytes.seek(0)
                shutil.copyfileobj(self._bytes, file, 1 << 24)
        except FileSystemError:
            raise
        except OSError as error:
            raise FileSystemError(f"cannot write {self.path}: {error.strerror or error}") from error


def checked_path(path: str | os.PathLike[str]) -> Path:
    """A path that such a file can have."""
    found = Path(path)
    if found.suffix != ".safetensors":
        raise InvalidInputError(f"values are saved as .safetensors, not {found.name!r}.")
    return found
