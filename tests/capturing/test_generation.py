"""Generating text: a loop of many small ops whose length depends on data, and caches that grow from step to step.

The offloaded caches of transformers want CUDA, and the quantized ones a package that is no dependency of ours.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from support import load_transformers, tiny_gpt2, tiny_llama
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import torchatlas as atlas
from torchatlas.graph import Graph, GraphNode

PROMPT, STEPS, LAYERS = 4, 4, 2


class Names(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found.append(str(func))
        return func(*args, **(kwargs or {}))


def gpt2() -> nn.Module:
    return tiny_gpt2()[0]


def llama() -> nn.Module:
    return tiny_llama()[0]


def t5() -> nn.Module:
    transformers = load_transformers()
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=31,
        d_model=8,
        d_kv=4,
        d_ff=16,
        num_layers=LAYERS,
        num_heads=2,
        decoder_start_token_id=0,
        pad_token_id=0,
        eos_token_id=1,
    )
    return transformers.T5ForConditionalGeneration(config)


def bart() -> nn.Module:
    transformers = load_transformers()
    torch.manual_seed(0)
    config = transformers.BartConfig(
        vocab_size=31,
        d_model=8,
        encoder_layers=LAYERS,
        decoder_layers=LAYERS,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=2,
    )
    return transformers.BartForConditionalGeneration(config)


def generated(model: nn.Module, prompts: int = 2, **options: Any) -> Tensor:
    """A whole generation, the same every time."""
    torch.manual_seed(0)
    tokens = torch.randint(3, 31, (prompts, PROMPT))
    options = {"max_new_tokens": STEPS, "do_sample": False, "pad_token_id": 0, **options}
    return model.generate(tokens, attention_mask=torch.ones_like(tokens), **options)


def endless(**options: Any) -> dict[str, Any]:
    """Options under which no token ends a sequence before its time."""
    return {"min_new_tokens": STEPS, **options}


def recorded(model: nn.Module, **options: Any) -> tuple[Graph, Tensor]:
    """The graph of a generation, after it was found to change nothing and miss nothing."""
    model.eval()
    eager = generated(model, **options)
    with Names() as names:
        alone = generated(model, **options)
    with atlas.recording(model) as rec:
        found = generated(model, **options)
    assert torch.equal(alone, eager)
    assert torch.equal(found, eager)
    graph = rec.graph
    assert [node.operation for node in graph.where(kind="op")] == names.found
    assert {str(node.phase) for node in graph} == {"forward"}
    return graph, found


def calls(graph: Graph, scope: str) -> int:
    return graph.scopes[scope].calls


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampling": {"do_sample": True, "top_k": 5, "top_p": 0.9, "temperature": 0.7},
    "beams": {"num_beams": 3},
    "sampled beams": {"num_beams": 2, "do_sample": True},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    "no cache": {"use_cache": False},
    "static cache": {"cache_implementation": "static"},
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("build", [gpt2, llama], ids=lambda build: build.__name__)
def test_each_step_is_a_call(build: Callable[[], nn.Module], way: str) -> None:
    model = build()
    graph, tokens = recorded(model, **endless(**WAYS[way]))
    assert tokens.shape == (2, PROMPT + STEPS)
    assert calls(graph, "") == calls(graph, "lm_head") == STEPS
    head = [node for node in graph.where(scope="lm_head") if node.operation == "aten.mm.default"]
    assert [node.call_index for node in head] == list(range(STEPS))
    attention = "transformer.h.1.attn" if build is gpt2 else "model.layers.1.self_attn"
    assert calls(graph, attention) == STEPS
    rows = graph[head[-1].name].inputs[0].shape[0]
    assert rows == 2 * WAYS[way].get("num_beams", 1)


@pytest.mark.parametrize("way", ["greedy", "sampling", "beams", "static cache"])
@pytest.mark.parametrize("build", [t5, bart], ids=lambda build: build.__name__)
def test_an_encoder_runs_once(build: Callable[[], nn.Module], way: str) -> None:
    model = build()
    graph, _ = recorded(model, **endless(**WAYS[way]))
    encoder, decoder = ("encoder", "decoder") if build is t5 else ("model.encoder", "model.decoder")
    assert (calls(graph, encoder), calls(graph, decoder)) == (1, STEPS)
    assert {node.call_index for node in graph.where(scope=encoder)} == {0}
    assert {node.call_index for node in graph.where(scope=decoder, kind="op")} == set(range(STEPS))


def grown(graph: Graph, length: int) -> list[GraphNode]:
    """The nodes that make a cache of some length: heads x length x size, joined along the length."""
    found = [node for node in graph.where(operation="cat") if node.attributes.get("dim") == -2]
    return [node for node in found if node.outputs[0].shape[-2] == length and node.scope.path]


def test_a_cache_grows_out_of_the_one_before() -> None:
    graph, _ = recorded(gpt2(), **endless())
    for length in range(PROMPT + 1, PROMPT + STEPS):
        now, before = grown(graph, length), grown(graph, length - 1)
        assert len(now) == 2 * LAYERS  # keys and values of each layer
        assert {node.call_index for node in now} == {length - PROMPT}
        for node, older in zip(now, before, strict=True):
            assert node.scope == older.scope
            assert node.inputs[0].producer == (older, 0)
            assert older in node.predecessors


def test_beams_reorder_the_cache_between_two_steps() -> None:
    graph, _ = recorded(gpt2(), num_beams=2, **endless())
    now, before = grown(graph, PROMPT + 2), grown(graph, PROMPT + 1)
    for node, older in zip(now, before, strict=True):
        (chosen,) = (found for found in node.predecessors if found.operation == "aten.index_select.default")
        assert older in chosen.predecessors


def test_a_static_cache_is_written_in_place() -> None:
    graph, _ = recorded(llama(), cache_implementation="static", **endless())
    writes = [node for node in graph.where(operation="index_copy_") if node.scope.path.endswith("self_attn")]
    assert len(writes) == 2 * LAYERS * STEPS
    of_storage: dict[Any, list[GraphNode]] = {}
    for node in writes:
        of_storage.setdefault(node.outputs[0].storage, []).append(node)
    assert [len(nodes) for nodes in of_storage.values()] == [STEPS] * (2 * LAYERS)
    for nodes in of_storage.values():
        assert [node.call_index for node in nodes] == list(range(STEPS))
        for older, newer in pairwise(nodes):
            assert older in newer.predecessors, "what was written before is still in the cache"


def test_a_sequence_that_ends_by_itself() -> None:
    model = gpt2().eval()
    tokens = generated(model, prompts=1, **endless())
    end = int(tokens[0, PROMPT + 1])
    first = int((tokens[0, PROMPT:] == end).nonzero()[0]) + 1
    graph, shorter = recorded(model, prompts=1, eos_token_id=end)
    assert first <= 2
    assert shorter.shape == (1, PROMPT + first)
    assert calls(graph, "") == first


def test_a_criterion_that_reads_the_tokens() -> None:
    transformers = load_transformers()

    class Enough(transformers.StoppingCriteria):
        def __call__(self, tokens: Tensor, scores: Any, **kwargs: Any) -> Tensor:
            return torch.full((len(tokens),), tokens.shape[1] >= PROMPT + 3)

    graph, tokens = recorded(gpt2(), stopping_criteria=[Enough()], max_new_tokens=8, min_new_tokens=5)
    assert tokens.shape == (2, PROMPT + 3)
    assert calls(graph, "") == 3


def test_an_assistant_is_another_model() -> None:
    model, assistant = llama(), llama().eval()
    called = {model: 0, assistant: 0}

    def count(module: nn.Module, args: Any) -> None:
        called[module] += 1

    for module in called:
        module.register_forward_pre_hook(count)
    graph, tokens = recorded(model, prompts=1, assistant_model=assistant)
    assert tokens.shape == (1, PROMPT + STEPS)
    assert calls(graph, "") < STEPS  # it takes several of the assistant's tokens at once
    assert called == {model: 3 * calls(graph, ""), assistant: 3 * calls(graph, "LlamaForCausalLM")}  # it ran 3 times
    named = {value.parameter for node in graph.where(scope="LlamaForCausalLM.lm_head") for value in node.inputs}
    assert "LlamaForCausalLM.lm_head.weight" in named


def test_tokens_looked_up_in_the_prompt() -> None:
    graph, tokens = recorded(llama(), prompts=1, prompt_lookup_num_tokens=2, **endless())
    assert tokens.shape == (1, PROMPT + STEPS)
    assert 1 <= calls(graph, "") <= STEPS


def test_capturing_a_generation_leaves_the_model_as_it_was() -> None:
    model = gpt2().eval()
    expected = generated(model, **endless())
    torch.manual_seed(0)
    tokens = torch.randint(3, 31, (2, PROMPT))
    state, config = torch.get_rng_state(), model.generation_config.to_dict()
    options = endless(max_new_tokens=STEPS, do_sample=True, pad_token_id=0)
    graph = atlas.capture(model.generate, tokens, kwargs={"attention_mask": torch.ones_like(tokens), **options})
    assert torch.equal(torch.get_rng_state(), state)
    assert model.generation_config.to_dict() == config
    assert torch.equal(generated(model, **endless()), expected)
    assert len(graph.where(operation="multinomial")) == STEPS
    assert [node.outputs[0].shape for node in graph.where(operation="multinomial")] == [(2, 1)] * STEPS
