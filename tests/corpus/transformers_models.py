"""Architectures of transformers, each with random weights and every size turned down.

`small` reads a model type's default configuration and passes back the sizes it knows, smaller; what an architecture
needs beside that stands with its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from support import load_transformers
from torch import Tensor

from corpus import Call, Entry

Inputs = dict[str, Any]

VOCABULARY, LENGTH, PIXELS = 99, 8, 32  # as SIZES makes them

SIZES: dict[str, int] = {
    name: size
    for size, names in {
        32: """
            hidden_size d_model n_embd dim embed_dim embedding_size emb_dim word_embed_proj_dim decoder_hidden_size
            projection_dim hidden_dim encoder_hidden_size output_hidden_size attention_hidden_size lru_width
            out_hidden_size text_embed_dim projector_hidden_size model_dim inner_dim image_size img_size
        """,
        4: """
            num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads attention_heads
            num_encoder_attention_heads num_decoder_attention_heads decoder_num_attention_heads num_local_experts
            num_experts n_routed_experts moe_num_experts num_routed_experts
        """,
        2: """
            num_key_value_heads num_kv_heads n_kv_heads decoder_num_key_value_heads encoder_num_key_value_heads
            num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers num_encoder_layers
            num_decoder_layers decoder_num_hidden_layers encoder_num_hidden_layers decoder_num_layers depth
            num_experts_per_tok moe_topk moe_k
        """,
        8: """
            head_dim global_head_dim attention_head_dim d_kv kv_channels d_head qk_nope_head_dim qk_rope_head_dim
            v_head_dim linear_key_head_dim linear_value_head_dim patch_size state_size ssm_state_size mamba_d_state
        """,
        64: """
            intermediate_size ffn_dim d_ff n_inner encoder_ffn_dim decoder_ffn_dim mlp_dim ffn_hidden_size
            moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size decoder_intermediate_size
            encoder_intermediate_size intermediate_size_mlp d_inner dff mlp_hidden_size max_position_embeddings
            n_positions n_ctx max_seq_len max_source_positions max_target_positions max_sequence_length
            max_2d_position_embeddings
        """,
        16: "kv_lora_rank q_lora_rank sliding_window time_step_rank",
        VOCABULARY: "vocab_size src_vocab_size tgt_vocab_size entity_vocab_size",
        1: "bos_token_id",
    }.items()
    for name in names.split()
} | {"eos_token_id": 2, "pad_token_id": 0}

DECODERS = """
    afmoe apertus arcee bamba biogpt bitnet bloom codegen cohere cohere2 cpmant ctrl cwm deepseek_v2 deepseek_v3
    diffllama doge ernie4_5 ernie4_5_moe exaone4 falcon falcon_h1 falcon_mamba flex_olmo gemma gemma2 gemma3_text glm
    glm4 glm4_moe gpt2 gpt_bigcode gpt_neo gpt_neox gpt_neox_japanese gpt_oss gptj granite granitemoe granitemoehybrid
    granitemoeshared helium jamba jetmoe lfm2 llama llama4_text mamba mamba2 minimax ministral3 mistral mixtral
    modernbert-decoder moshi mpt nanochat nemotron nemotron_h olmo olmo2 olmo3 olmoe openai-gpt opt persimmon phi phi3
    phimoe qwen2 qwen2_moe qwen3 qwen3_moe qwen3_next recurrent_gemma rwkv seed_oss smollm3 stablelm starcoder2
    vaultgemma xglm
"""
ENCODERS = """
    albert bert bert-generation camembert canine convbert data2vec-text deberta deberta-v2 distilbert dpr
    electra ernie esm eurobert flaubert funnel ibert layoutlm longformer luke megatron-bert mobilebert modernbert mpnet
    mra nomic_bert nystromformer reformer rembert roberta roberta-prelayernorm roc_bert roformer splinter squeezebert
    tapas visual_bert xlm xlm-roberta xlm-roberta-xl xlnet xmod yoso
"""
ENCODER_DECODERS = """
    bart blenderbot blenderbot-small fsmt led longt5 m2m_100 marian mbart mt5 mvp nllb-moe pegasus
    pegasus_x plbart prophetnet switch_transformers t5 t5gemma umt5
"""
PICTURES = """
    beit bit convnext convnextv2 cvt data2vec-vision deit dinov2 dinov2_with_registers dinov3_vit donut-swin dpt
    efficientnet focalnet glpn hiera ijepa mobilenet_v1 mobilenet_v2 mobilevit pixio poolformer pvt
    pvt_v2 regnet resnet sam_vision_model segformer swiftformer swin swinv2 vit vit_mae vit_msn vitdet yolos
"""
PICTURES_WITH_TEXT = """
    altclip blip chinese_clip clip clipseg flava git groupvit metaclip_2 owlv2 owlvit siglip vilt
"""
VIDEOS = "timesformer videomae vivit"
SOUNDS = "data2vec-audio hubert sew sew-d unispeech unispeech-sat wav2vec2 wav2vec2-conformer wavlm"

IMAGE = VOCABULARY - 1  # the token that stands where a picture goes

HYBRID = {"layer_types": ["linear_attention", "full_attention"]}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_chunk_size": 8, "attn_layer_indices": [1]}
WINDOWS = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 2}
BLOCKS = {"block_size": 4, "num_random_blocks": 1, "max_position_embeddings": 64}
SERIES = {"prediction_length": 4, "context_length": 12, "lags_sequence": [1, 2], "num_time_features": 1}
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}
BACKBONE = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "backbone_config": RESNET}

CHANGES: dict[str, dict[str, Any]] = {
    "bamba": MAMBA,
    "big_bird": BLOCKS,
    "bigbird_pegasus": BLOCKS,
    "codegen": {"rotary_dim": 8},
    "deepseek_v2": {"num_key_value_heads": 4, "num_experts_per_tok": 2},
    "deepseek_v3": {"num_key_value_heads": 4},
    "conditional_detr": BACKBONE,
    "decision_transformer": {"state_dim": 5, "act_dim": 3, "vocab_size": 1, "max_ep_len": 64},
    "detr": BACKBONE,
    "donut-swin": WINDOWS,
    "efficientnet": {"width_coefficient": 0.25, "depth_coefficient": 0.5, "hidden_dim": 320},
    "esm": {"vocab_size": VOCABULARY, "pad_token_id": 0, "mask_token_id": 3},
    "falcon_h1": {"mamba_chunk_size": 8},
    "funnel": {"block_sizes": [1, 1], "architectures": ["FunnelModel"]},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gptj": {"rotary_dim": 8},
    "granitemoehybrid": {**MAMBA, "layer_types": ["mamba", "attention"]},
    "hiera": {"image_size": [PIXELS, PIXELS], "patch_stride": [2, 2], "embed_dim": 16, "depths": [1] * 4},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 2, "chunk_size": 4},
    "nemotron": {"num_key_value_heads": 2},
    "qwen3_next": HYBRID,
    "reformer": {
        "axial_pos_shape": [4, 2],
        "axial_pos_embds_dim": [16, 16],
        "attn_layers": ["local", "lsh"],
        "local_attn_chunk_length": 4,
        "lsh_attn_chunk_length": 4,
        "num_buckets": 2,
    },
    "swin": WINDOWS,
    "swinv2": WINDOWS,
    "xmod": {"default_language": "en_XX"},
    # below: what OTHERS feeds
    "audio-spectrogram-transformer": {"max_length": 32, "num_mel_bins": 16, "patch_size": 8},
    "autoformer": {**SERIES, "label_length": 4, "moving_average": 3},
    "blip-2": {
        "num_query_tokens": 4,
        "image_token_index": IMAGE,
        "image_text_hidden_size": 16,
        "qformer_config": {"cross_attention_frequency": 1},
    },
    "bros": {"dim_bbox_sinusoid_emb_2d": 16, "dim_bbox_sinusoid_emb_1d": 2, "dim_bbox_projection": 8},
    "clap": {
        "audio_config": {
            "spec_size": 64,
            "num_mel_bins": 16,
            "depths": [1, 1],
            "num_attention_heads": [2, 4],
            "patch_embeds_hidden_size": 16,
            "hidden_size": 32,
        },
    },
    "encodec": {
        "num_filters": 4,
        "hidden_size": 16,
        "codebook_dim": 16,
        "codebook_size": 16,
        "upsampling_ratios": [4, 2],
    },
    "gemma3": {"image_token_id": IMAGE, "mm_tokens_per_image": 4},
    "idefics3": {"image_token_id": IMAGE, "pad_token_id": 0},
    "informer": SERIES,
    "internvl": {
        "image_token_id": IMAGE,
        "vision_config": {"image_size": [PIXELS, PIXELS], "patch_size": [8, 8]},
    },
    "llava": {"image_token_index": IMAGE, "vision_feature_layer": -1},
    "lxmert": {"l_layers": 1, "x_layers": 1, "r_layers": 1, "visual_feat_dim": 16},
    "paligemma": {"image_token_index": IMAGE},
    "patchtsmixer": {"num_input_channels": 2},
    "patchtst": {"num_input_channels": 2, "patch_length": 4, "patch_stride": 4},
    "perceiver": {"num_latents": 4, "d_latents": 32, "num_self_attends_per_block": 2},
    "qwen2_vl": {
        "image_token_id": IMAGE,
        "vision_start_token_id": IMAGE - 1,
        "video_token_id": IMAGE - 2,
        "text_config": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}},
    },
    "sam": {
        "vision_config": {"output_channels": 32, "window_size": 2, "global_attn_indexes": [1], "num_pos_feats": 16},
        "prompt_encoder_config": {"mask_input_channels": 4, "image_embedding_size": 4},
        "mask_decoder_config": {"iou_head_hidden_dim": 16},
    },
    "speech_to_text": {"conv_channels": 16, "input_feat_per_channel": 16},
    "time_series_transformer": SERIES,
    "timesfm": {"patch_length": 4, "horizon_length": 4, "context_length": 16},
    "wav2vec2-bert": {"apply_spec_augment": False, "feature_projection_input_dim": 16},
    "whisper": {"num_mel_bins": 16, "max_source_positions": 16},
}


def small(model_type: str) -> Any:
    """The configuration of a model type with every known size turned down."""
    config = load_transformers().AutoConfig
    default = config.for_model(model_type).to_dict()
    return config.for_model(model_type, **merged(smaller(default), CHANGES.get(model_type, {})))


def smaller(default: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for name, value in default.items():
        if isinstance(value, dict) and "model_type" in value:
            found[name] = {**smaller(value), "model_type": value["model_type"]}
        elif name in SIZES and type(value) is int:
            found[name] = SIZES[name] if name.endswith(("vocab_size", "token_id")) else min(SIZES[name], value)
    return found


def merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Both, the second over the first, also inside the configurations of parts."""
    inner = {name: merged(one[name], value) for name, value in other.items() if isinstance(one.get(name), dict)}
    return {**one, **other, **inner}


def words(*shape: int) -> Tensor:
    return torch.randint(3, VOCABULARY - 4, shape)


def tokens(config: Any, length: int = LENGTH) -> Inputs:
    mask = torch.ones(2, length, dtype=torch.long)
    mask[1, -2:] = 0
    return {"input_ids": words(2, length), "attention_mask": mask}


def pairs(config: Any, length: int = LENGTH) -> Inputs:
    return {**tokens(config, length), "decoder_input_ids": words(2, LENGTH)}


def pixels(config: Any) -> Inputs:
    return {"pixel_values": torch.randn(2, 3, PIXELS, PIXELS)}


def frames(config: Any) -> Inputs:
    return {"pixel_values": torch.randn(2, config.num_frames, 3, PIXELS, PIXELS)}


def waves(config: Any) -> Inputs:
    return {"input_values": torch.randn(2, 8000)}


def pixels_and_tokens(config: Any) -> Inputs:
    return {**pixels(config), **tokens(config)}


def pixels_among_tokens(config: Any, count: int = 16, **more: Any) -> Inputs:
    """A picture's place in the text is held by as many special tokens as the model makes of it."""
    ids = torch.cat([words(2, 3), torch.full((2, count), IMAGE), words(2, 5)], 1)
    return {**pixels(config), "input_ids": ids, "attention_mask": torch.ones_like(ids), **more}


def patches_among_tokens(config: Any) -> Inputs:
    """Pictures already cut into patches, and the grid they were cut by."""
    vision = config.vision_config
    size = vision.in_channels * vision.temporal_patch_size * vision.patch_size**2
    ids = torch.cat([words(1, 2), torch.tensor([[IMAGE - 1] + [IMAGE] * 4]), words(1, 3)], 1)
    return {
        "input_ids": ids,
        "mm_token_type_ids": ids.eq(IMAGE).int(),
        "pixel_values": torch.randn(16, size),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
    }


def series(config: Any) -> Inputs:
    past, future = config.context_length + max(config.lags_sequence), config.prediction_length
    return {
        "past_values": torch.randn(2, past),
        "past_time_features": torch.randn(2, past, 1),
        "past_observed_mask": torch.ones(2, past),
        "future_values": torch.randn(2, future),
        "future_time_features": torch.randn(2, future, 1),
    }


def channels(config: Any) -> Inputs:
    return {"past_values": torch.randn(2, config.context_length, config.num_input_channels)}


def features(config: Any, *shape: int) -> Inputs:
    return {"input_features": torch.randn(2, *shape)}


def boxes(*shape: int) -> Tensor:
    corners = torch.randint(0, 30, (*shape, 2))
    return torch.cat([corners, corners + 10], -1)


OTHERS: dict[str, Callable[[Any], Inputs]] = {
    "audio-spectrogram-transformer": lambda config: {"input_values": torch.randn(2, 32, 16)},
    "autoformer": series,
    "big_bird": partial(tokens, length=64),
    "bigbird_pegasus": partial(pairs, length=64),
    "blip-2": partial(pixels_among_tokens, count=4),
    "bros": lambda config: {**tokens(config), "bbox": torch.rand(2, LENGTH, 4)},
    "clap": lambda config: {**tokens(config), **features(config, 1, 64, 16)},
    "conditional_detr": pixels,
    "decision_transformer": lambda config: {
        "states": torch.randn(2, 4, 5),
        "actions": torch.randn(2, 4, 3),
        "rewards": torch.randn(2, 4, 1),
        "returns_to_go": torch.randn(2, 4, 1),
        "timesteps": torch.arange(4).repeat(2, 1),
        "attention_mask": torch.ones(2, 4),
    },
    "detr": pixels,
    "encodec": lambda config: {"input_values": torch.randn(2, 1, 256)},
    "gemma3": lambda config: {
        **(found := pixels_among_tokens(config, 4)),
        "token_type_ids": found["input_ids"].eq(IMAGE).int(),
    },
    "idefics3": lambda config: {
        **(found := pixels_among_tokens(config, 4)),
        "pixel_values": found["pixel_values"][:, None],
    },
    "informer": series,
    "internvl": partial(pixels_among_tokens, count=4),
    "llava": pixels_among_tokens,
    "lxmert": lambda config: {
        **tokens(config),
        "visual_feats": torch.randn(2, 3, 16),
        "visual_pos": torch.rand(2, 3, 4),
    },
    "paligemma": lambda config: {
        **(found := pixels_among_tokens(config)),
        "token_type_ids": torch.zeros_like(found["input_ids"]),
    },
    "patchtsmixer": channels,
    "patchtst": channels,
    "perceiver": lambda config: {"inputs": torch.randn(2, LENGTH, 32)},
    "qwen2_vl": patches_among_tokens,
    "sam": lambda config: {**pixels(config), "input_points": torch.rand(2, 1, 2, 2) * PIXELS},
    "speech_to_text": lambda config: {**features(config, 32, 16), "decoder_input_ids": words(2, LENGTH)},
    "time_series_transformer": series,
    "timesfm": lambda config: {
        "past_values": torch.randn(2, 16),
        "past_values_padding": torch.zeros(2, 16, dtype=torch.long),
        "freq": torch.zeros(2, 1, dtype=torch.long),
    },
    "udop": lambda config: {**pairs(config), "bbox": boxes(2, LENGTH) / PIXELS},
    "wav2vec2-bert": lambda config: features(config, 24, 16),
    "whisper": lambda config: {**features(config, 16, 32), "decoder_input_ids": words(2, LENGTH)},
}


def built(model_type: str, inputs: Callable[[Any], Inputs], head: str = "AutoModel") -> Call:
    transformers = load_transformers()
    config = small(model_type)
    return getattr(transformers, head).from_config(config).train(), (), inputs(config)


WORLDS = {"reformer": partial(patch.object, torch, "seed", lambda: 0)}  # it asks the machine for the seed of each run

FAMILIES: list[tuple[str, Callable[[Any], Inputs]]] = [
    (DECODERS, tokens),
    (ENCODERS, tokens),
    (ENCODER_DECODERS, pairs),
    (PICTURES, pixels),
    (PICTURES_WITH_TEXT, pixels_and_tokens),
    (VIDEOS, frames),
    (SOUNDS, waves),
]


def entries() -> Iterator[Entry]:
    for names, inputs in FAMILIES:
        for name in names.split():
            yield Entry(name, partial(built, name, inputs), world=WORLDS.get(name, nullcontext))
    for name, inputs in OTHERS.items():
        yield Entry(name, partial(built, name, inputs))


MODELS = {entry.name: entry for entry in entries()}
