"""Configs as they are published, against the number of parameters that their authors give.

Fields that make sizes, from the config.json of each model; totals and active parameters from its card or paper, in
billions, with as many digits as are given there. A total counts the embedding and a head unless tied; active ones count
both or neither, as authors differ. Layers that only speculate and towers for pictures are no part.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ppsim.cost.config_json import from_config, load_model
from ppsim.errors import ScenarioError


def heads(num: int, kv: int, dim: int | None = None) -> dict[str, Any]:
    return {"num_attention_heads": num, "num_key_value_heads": kv} | ({"head_dim": dim} if dim else {})


def sizes(model_type: str, layers: int, hidden: int, ff: int, vocab: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "intermediate_size": ff,
        "vocab_size": vocab,
        **more,
    }


MLA = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
V3 = sizes(
    "deepseek_v3",
    61,
    7168,
    18432,
    129280,
    **heads(128, 128),
    **MLA,
    q_lora_rank=1536,
    n_routed_experts=256,
    num_experts_per_tok=8,
    n_shared_experts=1,
    moe_intermediate_size=2048,
    first_k_dense_replace=3,
    moe_layer_freq=1,
    num_nextn_predict_layers=1,
)
PUBLISHED: dict[str, tuple[float, float, dict[str, Any]]] = {
    "dbrx": (
        131.6,
        36.0,
        {
            "model_type": "dbrx",
            "d_model": 6144,
            "n_heads": 48,
            "n_layers": 40,
            "vocab_size": 100352,
            "max_seq_len": 32768,
            "attn_config": {"clip_qkv": 8, "kv_n_heads": 8, "rope_theta": 500000},
            "ffn_config": {"ffn_hidden_size": 10752, "moe_jitter_eps": 0.01, "moe_num_experts": 16, "moe_top_k": 4},
        },
    ),
    "qwen3-next": (
        79.7,
        3.3,
        sizes(
            "qwen3_next",
            48,
            2048,
            5120,
            151936,
            **heads(16, 2, 256),
            full_attention_interval=4,
            linear_conv_kernel_dim=4,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            linear_num_key_heads=16,
            linear_num_value_heads=32,
            decoder_sparse_step=1,
            moe_intermediate_size=512,
            shared_expert_intermediate_size=512,
            num_experts=512,
            num_experts_per_tok=10,
            mlp_only_layers=[],
        ),
    ),
    "nemotron-h-8b": (
        8.1,
        8.1,
        sizes(
            "nemotron_h",
            52,
            4096,
            21504,
            131072,
            **heads(32, 8),
            attention_head_dim=128,
            hybrid_override_pattern="M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-",
            mamba_num_heads=128,
            mamba_head_dim=64,
            n_groups=8,
            ssm_state_size=128,
            conv_kernel=4,
            expand=2,
            mlp_hidden_act="relu2",
        ),
    ),
    "nemotron-nano-9b-v2": (
        8.89,
        8.89,
        sizes(
            "nemotron_h",
            56,
            4480,
            15680,
            131072,
            **heads(40, 8),
            attention_head_dim=128,
            hybrid_override_pattern="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
            mamba_num_heads=128,
            mamba_head_dim=80,
            n_groups=8,
            ssm_state_size=128,
            conv_kernel=4,
            expand=2,
            mlp_hidden_act="relu2",
        ),
    ),
    "nemotron-3-nano-30b": (
        31.6,
        3.2,
        sizes(
            "nemotron_h",
            52,
            2688,
            1856,
            131072,
            **heads(32, 2, 128),
            hybrid_override_pattern="MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            mamba_num_heads=64,
            mamba_head_dim=64,
            n_groups=8,
            ssm_state_size=128,
            conv_kernel=4,
            expand=2,
            mlp_hidden_act="relu2",
            n_routed_experts=128,
            num_experts_per_tok=6,
            n_shared_experts=1,
            moe_intermediate_size=1856,
            moe_shared_expert_intermediate_size=3712,
        ),
    ),
    "jamba-mini": (
        51.6,
        12.0,
        sizes(
            "jamba",
            32,
            4096,
            14336,
            65536,
            **heads(32, 8),
            num_experts=16,
            num_experts_per_tok=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            attn_layer_period=8,
            attn_layer_offset=4,
            mamba_d_conv=4,
            mamba_d_state=16,
            mamba_expand=2,
            mamba_dt_rank=256,
            mamba_conv_bias=True,
        ),
    ),
    "jamba-large": (
        398.6,
        94.0,
        sizes(
            "jamba",
            72,
            8192,
            24576,
            65536,
            **heads(64, 8),
            num_experts=16,
            num_experts_per_tok=2,
            expert_layer_period=2,
            expert_layer_offset=1,
            attn_layer_period=8,
            attn_layer_offset=4,
            mamba_d_conv=4,
            mamba_d_state=16,
            mamba_expand=2,
            mamba_dt_rank=512,
        ),
    ),
    "minimax-text-01": (
        456.1,
        45.9,
        sizes(
            "minimax_text_01",
            80,
            6144,
            9216,
            200064,
            **heads(64, 8, 128),
            num_local_experts=32,
            num_experts_per_tok=2,
            attn_type_list=([0] * 7 + [1]) * 10,
            shared_intermediate_size=0,
            shared_moe_mode="sigmoid",
            postnorm=True,
            layernorm_linear_attention_alpha=3.5,
        ),
    ),
    "gemma3-27b": (
        27.0,
        27.0,
        {
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "num_hidden_layers": 62,
                "hidden_size": 5376,
                "intermediate_size": 21504,
                **heads(32, 16, 128),
                "sliding_window": 1024,
                "query_pre_attn_scalar": 168,
            },
            "vision_config": {"hidden_size": 1152},
        },
    ),
    "gemma2-27b": (27.23, 27.2, sizes("gemma2", 46, 4608, 36864, 256000, **heads(32, 16, 128), sliding_window=4096)),
    "deepseek-v3.2": (
        671.9,
        37.6,
        {**V3, "model_type": "deepseek_v32", "index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128},
    ),
    "kimi-k2": (
        1026.4,
        32.0,
        {
            **V3,
            "model_type": "kimi_k2",
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "n_routed_experts": 384,
            "first_k_dense_replace": 1,
            "vocab_size": 163840,
        },
    ),
    "glm-4.5": (
        352.8,
        32.0,
        sizes(
            "glm4_moe",
            92,
            5120,
            12288,
            151552,
            **heads(96, 8, 128),
            n_routed_experts=160,
            num_experts_per_tok=8,
            n_shared_experts=1,
            moe_intermediate_size=1536,
            first_k_dense_replace=3,
            attention_bias=True,
            use_qk_norm=True,
            num_nextn_predict_layers=1,
        ),
    ),
    "glm-4.5-air": (
        106.9,
        12.0,
        sizes(
            "glm4_moe",
            46,
            4096,
            10944,
            151552,
            **heads(96, 8, 128),
            n_routed_experts=128,
            num_experts_per_tok=8,
            n_shared_experts=1,
            moe_intermediate_size=1408,
            first_k_dense_replace=1,
            attention_bias=True,
            use_qk_norm=False,
        ),
    ),
    "llama4-scout": (
        107.8,
        17.0,
        {
            "model_type": "llama4",
            "text_config": sizes(
                "llama4_text",
                48,
                5120,
                8192,
                202048,
                **heads(40, 8, 128),
                intermediate_size_mlp=16384,
                num_local_experts=16,
                num_experts_per_tok=1,
                interleave_moe_layer_step=1,
                attention_chunk_size=8192,
            ),
            "vision_config": {"a": 1},
        },
    ),
    "llama4-maverick": (
        400.7,
        17.2,
        {
            "model_type": "llama4",
            "text_config": sizes(
                "llama4_text",
                48,
                5120,
                8192,
                202048,
                **heads(40, 8, 128),
                intermediate_size_mlp=16384,
                num_local_experts=128,
                num_experts_per_tok=1,
                interleave_moe_layer_step=2,
                attention_chunk_size=8192,
            ),
            "vision_config": {"a": 1},
        },
    ),
    "kimi-linear": (
        49.1,
        3.0,
        sizes(
            "kimi_linear",
            27,
            2304,
            9216,
            163840,
            **heads(32, 32, 72),
            **MLA,
            q_lora_rank=None,
            num_experts=256,
            num_experts_per_token=8,
            num_shared_experts=1,
            moe_intermediate_size=1024,
            first_k_dense_replace=1,
            moe_layer_freq=1,
            linear_attn_config={
                "full_attn_layers": [4, 8, 12, 16, 20, 24, 27],
                "kda_layers": [i for i in range(1, 28) if i not in (4, 8, 12, 16, 20, 24, 27)],
                "head_dim": 128,
                "num_heads": 32,
                "short_conv_kernel_size": 4,
            },
            mla_use_nope=True,
        ),
    ),
    "qwen2-57b-a14b": (
        57.4,
        14.2,
        sizes(
            "qwen2_moe",
            28,
            3584,
            18944,
            151936,
            **heads(28, 4),
            num_experts=64,
            num_experts_per_tok=8,
            moe_intermediate_size=2560,
            shared_expert_intermediate_size=20480,
            decoder_sparse_step=1,
        ),
    ),
    "qwen1.5-moe": (
        14.3,
        2.7,
        sizes(
            "qwen2_moe",
            24,
            2048,
            5632,
            151936,
            **heads(16, 16),
            num_experts=60,
            num_experts_per_tok=4,
            moe_intermediate_size=1408,
            shared_expert_intermediate_size=5632,
            decoder_sparse_step=1,
        ),
    ),
    "mixtral-8x22b": (
        140.6,
        39.0,
        sizes("mixtral", 56, 6144, 16384, 32768, **heads(48, 8), num_local_experts=8, num_experts_per_tok=2),
    ),
    "phi-3.5-moe": (
        41.9,
        6.6,
        sizes(
            "phimoe",
            32,
            4096,
            6400,
            32064,
            **heads(32, 8),
            num_local_experts=16,
            num_experts_per_tok=2,
            attention_bias=True,
            lm_head_bias=True,
        ),
    ),
    "phi-4": (14.66, 14.66, sizes("phi3", 40, 5120, 17920, 100352, **heads(40, 10))),
    "command-r-plus": (103.8, 103.8, sizes("cohere", 64, 12288, 33792, 256000, **heads(96, 8), use_qk_norm=True)),
    "command-a": (
        111.06,
        111.0,
        sizes("cohere2", 64, 12288, 36864, 256000, **heads(96, 8, 128), sliding_window=4096, sliding_window_pattern=4),
    ),
    "mistral-large-2": (122.6, 122.6, sizes("mistral", 88, 12288, 28672, 32768, **heads(96, 8, 128))),
    "hunyuan-a13b": (
        80.4,
        13.0,
        sizes(
            "hunyuan_v1_moe",
            32,
            4096,
            3072,
            128167,
            **heads(32, 8),
            attention_head_dim=128,
            num_experts=64,
            moe_topk=[8] * 32,
            num_shared_expert=[1] * 32,
            moe_intermediate_size=[3072] * 32,
            use_mixed_mlp_moe=True,
            use_qk_norm=True,
            use_cla=False,
            cla_share_factor=2,
            tie_word_embeddings=True,
        ),
    ),
    "hunyuan-large": (
        389.0,
        52.0,
        sizes(
            "hunyuan",
            64,
            6400,
            18304,
            129024,
            **heads(80, 8),
            num_experts=16,
            moe_topk=1,
            num_shared_expert=1,
            use_mixed_mlp_moe=True,
            use_qk_norm=True,
            use_cla=True,
            cla_share_factor=2,
            tie_word_embeddings=True,
        ),
    ),
    "step3": (
        316.0,
        38.0,
        sizes(
            "step3_text",
            61,
            7168,
            18432,
            128815,
            num_attention_heads=64,
            num_attention_groups=1,
            head_dim=256,
            share_q_dim=2048,
            moe_num_experts=48,
            moe_top_k=3,
            moe_intermediate_size=5120,
            share_expert_dim=5120,
            moe_layers_enum=",".join(map(str, range(4, 60))),
        ),
    ),
    "ernie-300b": (
        299.4,
        47.0,
        sizes(
            "ernie4_5_moe",
            54,
            8192,
            28672,
            103424,
            **heads(64, 8),
            moe_num_experts=64,
            moe_k=8,
            moe_intermediate_size=3584,
            moe_layer_start_index=3,
            moe_layer_end_index=53,
            moe_layer_interval=1,
            moe_num_shared_experts=0,
            tie_word_embeddings=False,
            use_bias=False,
        ),
    ),
    "ernie-21b": (
        21.8,
        3.0,
        sizes(
            "ernie4_5_moe",
            28,
            2560,
            12288,
            103424,
            **heads(20, 4),
            moe_num_experts=64,
            moe_k=6,
            moe_intermediate_size=1536,
            moe_layer_start_index=1,
            moe_layer_end_index=27,
            moe_layer_interval=1,
            moe_num_shared_experts=2,
            tie_word_embeddings=True,
            use_bias=False,
        ),
    ),
    "dots.llm1": (
        142.8,
        14.0,
        sizes(
            "dots1",
            62,
            4096,
            10944,
            152064,
            **heads(32, 32),
            n_routed_experts=128,
            num_experts_per_tok=6,
            n_shared_experts=2,
            moe_intermediate_size=1408,
            first_k_dense_replace=1,
            moe_layer_freq=1,
        ),
    ),
    "falcon-h1-34b": (
        33.6,
        33.6,
        sizes(
            "falcon_h1",
            72,
            5120,
            21504,
            261120,
            **heads(20, 4, 128),
            mamba_d_ssm=4096,
            mamba_n_heads=32,
            mamba_d_head=128,
            mamba_d_state=256,
            mamba_n_groups=2,
            mamba_d_conv=4,
            mamba_expand=2,
        ),
    ),
    "olmo2-32b": (32.2, 32.2, sizes("olmo2", 64, 5120, 27648, 100352, **heads(40, 8))),
    "granite-4-h-small": (
        32.2,
        9.0,
        sizes(
            "granitemoehybrid",
            40,
            4096,
            768,
            100352,
            **heads(32, 8),
            num_local_experts=72,
            num_experts_per_tok=10,
            shared_intermediate_size=1536,
            layer_types=["attention" if i in (5, 15, 25, 35) else "mamba" for i in range(40)],
            mamba_n_heads=128,
            mamba_d_head=64,
            mamba_d_state=128,
            mamba_n_groups=1,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_conv_bias=True,
            tie_word_embeddings=True,
        ),
    ),
    "lfm2-8b-a1b": (
        8.34,
        1.5,
        sizes(
            "lfm2_moe",
            24,
            2048,
            7168,
            65536,
            **heads(32, 8),
            num_experts=32,
            num_experts_per_tok=4,
            moe_intermediate_size=1792,
            num_dense_layers=2,
            conv_L_cache=3,
            layer_types=["full_attention" if i in (2, 6, 10, 14, 18, 21) else "conv" for i in range(24)],
        ),
    ),
    "mamba-2.8b": (
        2.77,
        2.77,
        {
            "model_type": "mamba",
            "num_hidden_layers": 64,
            "hidden_size": 2560,
            "intermediate_size": 5120,
            "vocab_size": 50280,
            "state_size": 16,
            "conv_kernel": 4,
            "expand": 2,
            "time_step_rank": 160,
            "use_conv_bias": True,
        },
    ),
    "codestral-mamba": (
        7.3,
        7.3,
        {
            "model_type": "mamba2",
            "num_hidden_layers": 64,
            "hidden_size": 4096,
            "vocab_size": 32768,
            "num_heads": 128,
            "head_dim": 64,
            "n_groups": 8,
            "state_size": 128,
            "conv_kernel": 4,
            "expand": 2,
        },
    ),
    "grok-1": (
        314.0,
        80.0,
        sizes("grok-1", 64, 6144, 32768, 131072, **heads(48, 8), num_experts=8, num_experts_per_tok=2),
    ),
    "grok-2": (
        270.0,
        115.0,
        {
            **sizes(
                "git",
                64,
                8192,
                32768,
                131072,
                **heads(64, 8, 128),
                num_local_experts=8,
                num_experts_per_tok=2,
                moe_intermediate_size=16384,
                residual_moe=True,
            ),
            "architectures": ["Grok1ForCausalLM"],
        },
    ),
    "arctic": (
        480.0,
        17.0,
        sizes(
            "arctic",
            35,
            7168,
            4864,
            32000,
            **heads(56, 8),
            num_local_experts=128,
            num_experts_per_tok=2,
            moe_layer_frequency=1,
            use_residual=True,
            parallel_attn_mlp_res=True,
        ),
    ),
    "deepseek-moe-16b": (
        16.4,
        2.8,
        sizes(
            "deepseek",
            28,
            2048,
            10944,
            102400,
            **heads(16, 16),
            n_routed_experts=64,
            num_experts_per_tok=6,
            n_shared_experts=2,
            moe_intermediate_size=1408,
            first_k_dense_replace=1,
            moe_layer_freq=1,
        ),
    ),
    "deepseek-v2-lite": (
        15.7,
        2.4,
        sizes(
            "deepseek_v2",
            27,
            2048,
            10944,
            102400,
            **heads(16, 16),
            **MLA,
            q_lora_rank=None,
            n_routed_experts=64,
            num_experts_per_tok=6,
            n_shared_experts=2,
            moe_intermediate_size=1408,
            first_k_dense_replace=1,
            moe_layer_freq=1,
        ),
    ),
    "baichuan2-13b": (
        13.9,
        13.9,
        {
            "model_type": "baichuan",
            "num_hidden_layers": 40,
            "hidden_size": 5120,
            "intermediate_size": 13696,
            "vocab_size": 125696,
            "num_attention_heads": 40,
        },
    ),
    "chatglm3-6b": (
        6.24,
        6.24,
        {
            "model_type": "chatglm",
            "num_layers": 28,
            "hidden_size": 4096,
            "ffn_hidden_size": 13696,
            "padded_vocab_size": 65024,
            "num_attention_heads": 32,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "kv_channels": 128,
            "add_qkv_bias": True,
        },
    ),
    "pangu-pro-moe": (
        72.0,
        16.5,
        sizes(
            "PanguProMoE",
            48,
            5120,
            0,
            153376,
            **heads(40, 8),
            num_experts=64,
            num_experts_per_tok=8,
            moe_intermediate_size=1344,
            shared_expert_intermediate_size=5376,
        ),
    ),
    "ling-mini-2": (
        16.26,
        1.4,
        sizes(
            "bailing_moe",
            20,
            2048,
            5120,
            157184,
            **heads(16, 4, 128),
            num_experts=256,
            num_experts_per_tok=8,
            moe_intermediate_size=512,
            num_shared_experts=1,
            first_k_dense_replace=1,
            use_qk_norm=True,
        ),
    ),
    "seed-oss-36b": (
        36.15,
        36.15,
        sizes("seed_oss", 64, 5120, 27648, 155136, **heads(80, 8, 128), attention_bias=True, attention_out_bias=False),
    ),
    "gpt-neox-20b": (20.55, 20.55, sizes("gpt_neox", 44, 6144, 24576, 50432, num_attention_heads=64)),
    "bloom": (
        176.2,
        176.2,
        {
            "model_type": "bloom",
            "n_layer": 70,
            "hidden_size": 14336,
            "n_embed": 14336,
            "num_attention_heads": 112,
            "vocab_size": 250880,
        },
    ),
    "mpt-30b": (
        29.96,
        29.96,
        {
            "model_type": "mpt",
            "d_model": 7168,
            "n_heads": 64,
            "n_layers": 48,
            "expansion_ratio": 4,
            "vocab_size": 50432,
            "attn_config": {"attn_type": "multihead_attention"},
            "no_bias": True,
        },
    ),
    "gpt2-xl": (
        1.558,
        1.558,
        {
            "model_type": "gpt2",
            "n_embd": 1600,
            "n_head": 25,
            "n_layer": 48,
            "vocab_size": 50257,
            "n_positions": 1024,
            "n_ctx": 1024,
        },
    ),
    "exaone-3.5-32b": (
        32.0,
        32.0,
        {
            "model_type": "exaone",
            "num_layers": 64,
            "hidden_size": 5120,
            "intermediate_size": 27392,
            "vocab_size": 102400,
            **heads(40, 8),
            "tie_word_embeddings": False,
        },
    ),
    "solar-pro": (
        22.1,
        22.1,
        sizes(
            "solar",
            64,
            5120,
            17920,
            32128,
            **heads(40, 10),
            bskcn_1=[12, 20, 32, 44],
            bskcn_2=[20, 32],
            bskcn_tv=[0.9, 0.8],
        ),
    ),
    "qwen2.5-vl-72b": (
        72.7,
        72.7,
        {
            **sizes("qwen2_5_vl", 80, 8192, 29568, 152064, **heads(64, 8)),
            "vision_config": {"depth": 32},
            "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        },
    ),
    "qwen2.5-omni": (
        7.6,
        7.6,
        {
            "model_type": "qwen2_5_omni",
            "thinker_config": {
                "model_type": "qwen2_5_omni_thinker",
                "text_config": sizes("qwen2_5_omni_text", 28, 3584, 18944, 152064, **heads(28, 4)),
            },
            "talker_config": {"a": 1},
        },
    ),
    "gemma3n-e4b": (
        6.87,
        4.0,
        {
            "model_type": "gemma3n",
            "text_config": {
                "model_type": "gemma3n_text",
                "num_hidden_layers": 35,
                "hidden_size": 2048,
                "intermediate_size": 16384,
                **heads(8, 2, 256),
                "hidden_size_per_layer_input": 256,
                "vocab_size": 262400,
                "vocab_size_per_layer_input": 262144,
                "num_kv_shared_layers": 15,
                "altup_num_inputs": 4,
                "laurel_rank": 64,
                "sliding_window": 512,
            },
            "vision_config": {"a": 1},
        },
    ),
    "minimax-m2": (
        228.7,
        10.0,
        sizes(
            "minimax_m2",
            62,
            3072,
            1536,
            200064,
            **heads(48, 8, 128),
            num_local_experts=256,
            num_experts_per_tok=8,
            use_qk_norm=True,
            qk_norm_type="per_layer",
            attn_type_list=[1] * 62,
            shared_intermediate_size=0,
            num_mtp_modules=3,
            mtp_transformer_layers=1,
        ),
    ),
    "internvl": (
        72.7,
        72.7,
        {
            "model_type": "internvl_chat",
            "llm_config": {
                **sizes("qwen2", 80, 8192, 29568, 152064, **heads(64, 8)),
                "architectures": ["Qwen2ForCausalLM"],
            },
            "vision_config": {"a": 1},
        },
    ),
}

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "t5": ({"model_type": "t5", "is_encoder_decoder": True, "d_model": 1024, "num_layers": 24}, "an encoder's output"),
    "nemotron-nas": (sizes("nemotron-nas", 80, 8192, 8, 128256, block_configs=[{}]), "block_configs"),
    "hymba": (sizes("hymba", 32, 1600, 5504, 32001, **heads(25, 5)), "'hymba' cannot be read"),
    "phi4flash": (sizes("phi4flash", 32, 2560, 10240, 200064, **heads(40, 20)), "'phi4flash' cannot be read"),
    "ring-linear": (
        sizes("bailing_moe_linear", 20, 2048, 5120, 157184, **heads(16, 4, 128), layer_group_size=5),
        "linear layers of a kind that no field describes",
    ),
    "an encoder": (sizes("deberta-v2", 12, 768, 3072, 128100, **heads(12, 12), type_vocab_size=0), "is an encoder"),
    "unknown pattern": (
        sizes("new_hybrid", 24, 2048, 8192, 32000, **heads(16, 4), layer_pattern="MA"),
        "layer_pattern",
    ),
    "unknown states": (sizes("new_hybrid", 24, 2048, 8192, 32000, **heads(16, 4), mamba_d_state=64), "mamba_d_state"),
    "unknown low rank": (sizes("new", 24, 2048, 8192, 32000, **heads(16, 4), o_lora_rank=64), "o_lora_rank"),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_has_its_published_parameters(name: str) -> None:
    total, active, config = PUBLISHED[name]
    shape = from_config(config, name)
    assert shape.total_params() / 1e9 == pytest.approx(total, rel=0.006)
    without, with_ends = shape.active_params() / 1e9, (shape.active_params() + 2 * shape.embedding_params) / 1e9
    assert 0.94 * without <= active <= 1.06 * with_ends + 0.05
    told = [note for note in shape.notes if "not read" in note or "not known" in note]
    assert told == (["fields that are not read: vision_config"] if name == "qwen2.5-vl-72b" else [])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_read_is_refused_by_name(name: str) -> None:
    config, told = REFUSED[name]
    with pytest.raises(ScenarioError, match=told):
        from_config(config, name)


def test_an_unknown_type_with_fields_of_training_alone_is_read_and_told() -> None:
    shape = from_config(sizes("new", 24, 2048, 8192, 32000, **heads(16, 4), moe_z_loss=0.1, colour=3), "m")
    assert any("'new' is not known" in note for note in shape.notes)
    assert "fields that are not read: colour, moe_z_loss" in shape.notes


def test_layers_that_share_keys_and_values_count_them_once() -> None:
    """HunYuan-Large: two layers share them, which halves the cache (arXiv 2411.02265, table of KV cache sizes)."""
    config = PUBLISHED["hunyuan-large"][2]
    shared, own = from_config(config, "m"), from_config({**config, "use_cla": False}, "m")
    assert 2 * shared.kv_bytes_per_token == own.kv_bytes_per_token == 64 * 2 * 8 * 80 * 2


def test_a_list_with_an_entry_a_layer_may_stand_for_any_count() -> None:
    config = PUBLISHED["hunyuan-a13b"][2]
    alike = {**config, "moe_topk": 8, "num_shared_expert": 1, "moe_intermediate_size": 3072}
    assert from_config(config, "m").layers == from_config(alike, "m").layers
    with pytest.raises(ScenarioError, match="moe_topk: has 31 entries for 32 layers"):
        from_config({**config, "moe_topk": [8] * 31}, "m")


def test_llama_4_looks_at_chunks_in_three_layers_of_four() -> None:
    """Its published config names no layer types: those without rotary positions, one in four, see everything."""
    config = PUBLISHED["llama4-scout"][2]
    kinds = [layer.kind.split(" |")[0] for layer in from_config(config, "m").layers]
    assert kinds == ["chunks of 8192", "chunks of 8192", "chunks of 8192", "full"] * 12
    text = {**config["text_config"], "no_rope_layers": [1, 0] * 24}
    kinds = [layer.kind.split(" |")[0] for layer in from_config({**config, "text_config": text}, "m").layers]
    assert kinds == ["chunks of 8192", "full"] * 24


def test_a_deepseek_without_mla_has_heads_of_the_usual_width() -> None:
    """DeepSeek-VL2 tiny: use_mla false, the widths of MLA are null, and the class's own default is another width."""
    text = PUBLISHED["deepseek-v2-lite"][2] | {"num_hidden_layers": 12, "hidden_size": 1280, **heads(10, 10)}
    none = {"kv_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0}
    outer = {"model_type": "deepseek_vl_v2", "language_config": text | none | {"use_mla": False}}
    assert from_config(outer, "m").kv_bytes_per_token == 12 * 2 * 1280 * 2
    assert from_config(text | {"use_mla": False, "v_head_dim": 128}, "m").kv_bytes_per_token == 12 * 2 * 1280 * 2


def test_mpt_says_its_heads_in_a_table_of_its_own() -> None:
    config = PUBLISHED["mpt-30b"][2]
    one = {**config, "attn_config": {"attn_type": "multiquery_attention"}}
    eight = {**config, "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 8}}
    assert from_config(one, "m").kv_bytes_per_token == 48 * 2 * 112 * 2
    assert from_config(eight, "m").kv_bytes_per_token == 48 * 2 * 8 * 112 * 2


# --- types of weights -----------------------------------------------------------------------------------------------

SMALL = sizes("llama", 2, 1024, 4096, 32000, **heads(8, 8))
MATRICES = 2 * (4 * 1024 * 1024 + 3 * 1024 * 4096)


def layer_bytes(quantization: dict[str, Any], place: str = "quantization_config") -> float:
    shape = from_config({**SMALL, place: quantization}, "m")
    return sum(shape.layer_weight_bytes(i) for i in range(2))


@pytest.mark.parametrize(
    ("quantization", "bits"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}, 8),
        ({"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}, 4 + 20 / 128),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, 8 + 20 / 128),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 4.5),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, 8),
        ({"quant_method": "mxfp4"}, 4.25),
        (
            {
                "quant_method": "compressed-tensors",
                "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
            },
            4 + 16 / 32,
        ),
    ],
)
def test_bits_of_a_weight_are_those_of_the_format(quantization: dict[str, Any], bits: float) -> None:
    assert layer_bytes(quantization) == pytest.approx(MATRICES * bits / 8)
    assert layer_bytes(quantization, "compression_config") == layer_bytes(quantization)


def test_modelopt_may_say_it_in_a_file_beside_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SMALL))
    told = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(told))
    shape = load_model(str(tmp_path))
    assert sum(shape.layer_weight_bytes(i) for i in range(2)) == pytest.approx(MATRICES * 4.5 / 8)
    assert any("kv_cache_quant_algo: a server may keep an fp8 cache" in note for note in shape.notes)


def test_types_that_differ_from_layer_to_layer_are_told_or_refused() -> None:
    groups = {"a": {"weights": {"num_bits": 4}}, "b": {"weights": {"num_bits": 8}}}
    shape = from_config(
        {**SMALL, "quantization_config": {"quant_method": "compressed-tensors", "config_groups": groups}}, "m"
    )
    assert any("groups of 4, 8 bits: all count as the first" in note for note in shape.notes)
    dynamic = {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": {"-:.*attn.*": {}}}
    assert any(
        "dynamic gives some modules" in n for n in from_config({**SMALL, "quantization_config": dynamic}, "m").notes
    )
    with pytest.raises(ScenarioError, match="'mixed_precision' gives each layer a type of its own"):
        layer_bytes({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"})
    with pytest.raises(ScenarioError, match="unknown method 'int3_magic'"):
        layer_bytes({"quant_method": "int3_magic"})
