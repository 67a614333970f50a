"""Draw the pictures of the tutorial: run the code of its pages, and keep the pictures that the pages show.

A page shows `pictures/structure.svg` if its own code saves "structure.svg". So what is drawn is what the reader runs.
`python docs/learn/tutorial/pictures.py` draws all; tests/test_docs.py fails when a picture says something else than a
new one does.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main() -> None:
    for page in sorted(HERE.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        names = re.findall(r"\]\(pictures/([^)]+)\)", text)
        if not names:
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            namespace: dict[str, object] = {"__name__": "page"}
            for block in re.finditer(r"^```python\n(.*?)^```", text, re.S | re.M):
                above = text[: block.start()].count("\n") + 1  # a page asks torchatlas for the text of its own lines
                exec(compile("\n" * above + block[1], str(page), "exec"), namespace)
            for name in names:
                (HERE / "pictures" / name).write_bytes(Path(name).read_bytes())
            os.chdir(HERE)


if __name__ == "__main__":
    main()
