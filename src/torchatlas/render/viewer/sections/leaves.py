"""Tree -> which node each leaf is, and the tensors between leaves."""

from __future__ import annotations

import numpy as np

from torchatlas.render.viewer.sections.registered import Members, section
from torchatlas.render.viewer.subject import Subject


@section("leaves")
def leaves(subject: Subject) -> Members:
    """The arrays of the tree that the viewer draws from."""
    tree = subject.tree
    arrays = {
        "leaf_node": tree.node,
        "node_leaf": tree.leaf_of_node,
        "edge_source": tree.source,
        "edge_output": tree.output,
        "edge_target": tree.target,
        "edge_value": tree.value,
        "kept_source": tree.kept_source,
        "kept_output": tree.kept_output,
        "kept_target": tree.kept_target,
    }
    return {f"{name}.npy": array.astype(np.int32) for name, array in arrays.items()}
