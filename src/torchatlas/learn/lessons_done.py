"""Which lessons were done: one small JSON file in the user's state folder."""

from __future__ import annotations

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

from torchatlas.files import open_to_read, replacing


def state_folder() -> Path:
    """TORCHATLAS_STATE, or torchatlas in XDG_STATE_HOME, or in ~/.local/state."""
    if own := os.environ.get("TORCHATLAS_STATE"):
        return Path(own)
    base = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return Path(base) / "torchatlas"


class LessonsDone:
    """What was done, by name of the lesson. A folder that cannot be read or written is said once, in `trouble`."""

    def __init__(self, folder: Path | None = None) -> None:
        self.path = (state_folder() if folder is None else folder) / "lessons.json"
        self.trouble = ""
        self._done: dict[str, dict[str, Any]] = self._read()

    def __contains__(self, name: object) -> bool:
        return name in self._done

    def __len__(self) -> int:
        return len(self._done)

    def when(self, name: str) -> str | None:
        """The day on which a lesson was last done, as 2026-11-18."""
        return str(self._done[name].get("date", "")) if name in self._done else None

    def add(self, name: str, right: int, asked: int) -> None:
        """Note that a lesson was done."""
        self._done[name] = {"date": date.today().isoformat(), "right": right, "asked": asked}
        self._write()

    def reset(self, name: str | None = None) -> list[str]:
        """Forget one lesson, or all. Returns the names of those that were done."""
        gone = [each for each in self._done if name is None or each == name]
        for each in gone:
            del self._done[each]
        if gone:
            self._write()
        return gone

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            with open_to_read(self.path) as file:
                done = json.loads(file.read())["done"]
            return {str(name): dict(entry) for name, entry in done.items()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            self._say(f"cannot read {self.path}: {error.strerror or error}")
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            self._say(f"{self.path} is not a record of lessons ({type(error).__name__}) and counts as empty")
        return {}

    def _write(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replacing(self.path) as file:
                file.write(json.dumps({"version": 1, "done": self._done}, indent=1).encode())
        except OSError as error:
            self._say(f"cannot write {self.path}: {error.strerror or error}; set TORCHATLAS_STATE to another folder")

    def _say(self, text: str) -> None:
        self.trouble = self.trouble or f"What was done is not kept: {text}."
