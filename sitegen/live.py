"""A real page of the viewer for the site: one training step of a small GPT, with its backward pass and findings."""

from __future__ import annotations

PAGE = """\
---
hide: [navigation, toc]
---
# Can I try the viewer without installing anything?

This is a real file, as `graph.save("step.html")` writes it: one training step of a small GPT, recorded when these pages
were built. Click on a module to open it, on an op to see its line of code, shapes, time and memory; type in the search
field; drag to move and scroll to zoom. [Open it in a page of its own](live/step.html).

<iframe src="live/step.html" title="The viewer: a training step of a small GPT" class="live" loading="lazy"></iframe>

[What can I do in the viewer?](viewer.md) explains every pane. The same file for a model of yours:

    graph = atlas.capture(model, x, optimizer=torch.optim.AdamW)
    graph.save("step.html")
"""


def viewer_html() -> bytes:
    """The file itself."""
    import tempfile
    from pathlib import Path

    from torchatlas.demo import training_step

    with tempfile.TemporaryDirectory() as folder:
        return training_step().save(Path(folder) / "step.html", title="A training step of a small GPT").read_bytes()
