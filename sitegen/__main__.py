"""Build the site and check it: no warning, no dead link, nothing that asks another host."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort, MkDocsException

from sitegen.check import problems
from sitegen.promised import ROOT


def main(folder: Path) -> int:
    began = time.monotonic()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s")
    try:
        config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder))
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
    except (Abort, MkDocsException) as error:
        print(f"the site was not built: {error}", file=sys.stderr)
        return 1
    found = problems(folder)
    for problem in found:
        print(problem, file=sys.stderr)
    pages = len(list(folder.rglob("*.html")))
    print(f"{folder}: {pages} pages in {time.monotonic() - began:.0f} s, {len(found)} problems; open index.html")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT / "site"))
