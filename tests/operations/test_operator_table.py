"""The table of operators: a row says all that the columns say, and a program can add rows of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import torchatlas as atlas
from torchatlas.graph.nouns import OperationType
from torchatlas.operations import behaviour, of, operation_type, register_operator, type_of_box
from torchatlas.operations.categories import REGISTERED
from torchatlas.operations.formulas import FORMULAS


def twice(call: atlas.OpCall) -> atlas.Work:
    return atlas.Work(elementwise_flops=2 * call.outputs[0].numel)


@pytest.fixture
def registries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(REGISTERED, "_entries", {})
    monkeypatch.setattr(FORMULAS, "_entries", dict(FORMULAS._entries))
    yield
    operation_type.cache_clear()
    of.cache_clear()


def test_a_row_says_everything() -> None:
    row = of("aten.native_batch_norm.default")
    assert (row.category, row.kernel) == ("norm", "rows")
    assert row.hidden_writes == (("running_mean", "running_var"), "training")
    assert row.backward_only == (1, 2)
    assert row.loadable
    assert row.formula is FORMULAS["aten.native_batch_norm"]
    assert of("aten.add_.Tensor").formula is FORMULAS["aten.add"]


@pytest.mark.parametrize(
    ("name", "fact"),
    [
        ("aten.copy_.default", "overwrites"),
        ("aten.empty_like.default", "uninitialized"),
        ("aten.empty.out", "resizes"),
        ("aten.mkldnn_rnn_layer.default", "has_workspace"),
        ("aten.set_.source_Storage", "takes_storage"),
        ("aten.reshape.default", "may_copy"),
        ("c10d.allreduce_.default", "asynchronous"),
        ("c10d._reduce_scatter_base_.default", "gloo_buffered"),
        ("aten.from_file.default", "acts_outside"),
        ("profiler._record_function_exit.default", "bookkeeping"),
    ],
)
def test_each_fact_is_true_of_some_and_false_of_others(name: str, fact: str) -> None:
    assert getattr(of(name), fact) is True
    assert getattr(of("aten.mm.default"), fact) is False


def test_collectives_fill_or_update_an_argument() -> None:
    filling, updating = of("c10d.scatter_.default"), of("c10d.allreduce_.default")
    assert (filling.fills, filling.updates) == ("output_tensors", "")
    assert (updating.fills, updating.updates) == ("", "tensors")
    assert (of("c10d.send.default").fills, of("c10d.send.default").updates) == ("", "")
    assert of("fsdp.all_gather_copy_in.default").updates == "all_gather_output"
    assert not of("_c10d_functional.wait_tensor.default").asynchronous


def test_operators_with_facts_exist() -> None:
    """A misspelt name would never be found."""
    known = {name.replace("::", ".") for name in torch._C._dispatch_get_all_op_names()}
    known |= {name if name.count(".") > 1 else f"{name}.default" for name in known}
    known |= {".".join(name.split(".")[:2]) for name in known}
    columns = (behaviour.HIDDEN_WRITES, behaviour.OVERWRITES, behaviour.UNINITIALIZED, behaviour.RESIZES)
    more = (behaviour.WITH_WORKSPACE, behaviour.TAKES_STORAGE, behaviour.COLLECTIVES, behaviour.GLOO_BUFFERED)
    assert [name for column in (*columns, *more) for name in column if name not in known] == []


def test_what_has_a_formula_has_a_category() -> None:
    unknown = (OperationType.UNKNOWN, OperationType.CUSTOM, OperationType.MODULE)
    assert [name for name in FORMULAS if operation_type(name) in unknown] == []


@pytest.mark.usefixtures("registries")
def test_category_and_formula_are_registered_together() -> None:
    atlas.register_operator("testlib::scan", category="reduction", formula=twice)
    row = of("testlib.scan.default")
    assert (row.category, row.kernel, row.formula) == ("reduction", "rows", twice)


@pytest.mark.usefixtures("registries")
def test_what_is_refused_changes_nothing() -> None:
    register_operator("testlib::scan", formula=twice)
    with pytest.raises(ValueError, match="registered twice"):
        register_operator("testlib::scan", category="norm", formula=twice)
    assert operation_type("testlib.scan.default") == "custom"
    with pytest.raises(ValueError, match="already matmul"):
        register_operator("aten::_scaled_addmm", category="norm", formula=twice)
    assert "aten._scaled_addmm" not in FORMULAS
    with pytest.raises(ValueError, match="'normm' is no category; did you mean 'norm'"):
        register_operator("testlib::other", category="normm")
    with pytest.raises(ValueError, match="needs a category, a formula or both"):
        register_operator("testlib::other")
    with pytest.raises(atlas.AtlasError):
        register_operator("testlib::other")
    with pytest.raises(atlas.AtlasError, match="already matmul"):
        register_operator("aten::_scaled_addmm", category="norm")


@pytest.mark.usefixtures("registries")
def test_the_old_spelling_still_files_a_formula() -> None:
    with pytest.warns(DeprecationWarning, match="register_operator"):
        file = atlas.formula("testlib::first", "testlib::second")
    assert file(twice) is twice
    assert of("testlib.first.default").formula is of("testlib.second.default").formula is twice


@pytest.mark.usefixtures("registries")
def test_a_category_reaches_every_spelling_and_overload() -> None:
    assert operation_type("testlib.fancy.default") is OperationType.CUSTOM  # cached before: registering must forget it
    register_operator("testlib::fancy", category=OperationType.ATTENTION)
    for name in (
        "testlib::fancy",
        "testlib.fancy",
        "testlib.fancy.default",
        "testlib::fancy.out",
        "torch.ops.testlib.fancy.default",
    ):
        assert operation_type(name) is OperationType.ATTENTION, name
    assert operation_type("testlib.fancier.default") is OperationType.CUSTOM
    register_operator("my.package.Norm", category="norm")
    assert operation_type("my.package.Norm") is OperationType.NORM
    assert operation_type("my.package.Block") is OperationType.MODULE


@pytest.mark.usefixtures("registries")
def test_duplicates_and_nonsense_are_refused() -> None:
    register_operator("testlib.fancy", category=OperationType.CUSTOM)
    with pytest.raises(ValueError, match="already custom"):
        register_operator("testlib::fancy", category=OperationType.NORM)
    with pytest.raises(ValueError, match="already matmul"):
        register_operator("aten::mm", category=OperationType.NORM)
    for nonsense in ("fancy", "", "testlib::", "my lib::op"):
        with pytest.raises(ValueError, match="expected 'namespace::name'"):
            register_operator(nonsense, category=OperationType.NORM)
        with pytest.raises(ValueError, match="expected 'namespace::name'"):
            register_operator(nonsense, formula=twice)


@pytest.mark.usefixtures("registries")
def test_a_registered_class_comes_first() -> None:
    register_operator("mine.Gate", category=OperationType.ATTENTION)
    register_operator("mine.Linear", category=OperationType.NORM)
    register_operator("mine.Dropout", category=OperationType.POOLING)
    assert type_of_box(OperationType.MATMUL, "Gate") is OperationType.ATTENTION
    assert type_of_box(OperationType.MATMUL, "Linear") is OperationType.MATMUL  # torch's, or so it seems
    assert type_of_box(OperationType.POINTWISE, "Dropout") is OperationType.POOLING
    register_operator("theirs.Gate", category=OperationType.NORM)
    assert type_of_box(OperationType.MATMUL, "Gate") is OperationType.MATMUL
