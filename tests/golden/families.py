"""Tiny configurations of every family: FAMILIES[model_type][variant] is a config.json.

Sizes are small but odd where that shows mistakes: several heads per KV head, head sizes that are not
hidden/heads, windows shorter than the prompt.
"""

BASE = {
    "hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "rms_norm_eps": 1e-5, "max_position_embeddings": 512,
}


def of(model_type, **kw):
    c = {"model_type": model_type, **BASE, **kw}
    return {k: v for k, v in c.items() if v != "absent"}


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}

def lille(**kw):
    return {"model_type": "lille-130m", "block_size": 512, "layer_norm_eps": 1e-5, "n_embd": 64, "n_head": 4,
            "n_kv_heads": 2, "n_layer": 2, "rope_theta": 10000.0, "vocab_size": 96, **kw}


def qwen3_5(**kw):
    return of("qwen3_5_text", num_hidden_layers=4, head_dim=32, linear_num_value_heads=4, linear_num_key_heads=2,
              linear_key_head_dim=16, linear_value_head_dim=32, linear_conv_kernel_dim=4, full_attention_interval=2,
              rope_parameters={"type": "default", "rope_theta": 100000.0, "partial_rotary_factor": 0.5,
                               "mrope_section": [2, 1, 1]}) | kw


def latent(model_type, **kw):
    """Latent attention; no experts unless they are asked for."""
    return of(model_type, kv_lora_rank=64, q_lora_rank=64, qk_rope_head_dim=16, qk_nope_head_dim=64, v_head_dim=32,
              rope_theta=10000.0, n_routed_experts=None) | kw


def llama4(**kw):
    """Chunks that begin in the prompt and in the reply; no experts unless they are asked for."""
    text = of("llama4_text", num_hidden_layers=5, head_dim=16, attention_bias=False, attention_chunk_size=8,
              interleave_moe_layer_step=6, intermediate_size_mlp=192, num_experts_per_tok=1, num_local_experts=6,
              rope_scaling=None, rope_theta=500000.0, use_qk_norm=True, floor_scale=4)
    return {"model_type": "llama4", "vocab_size": 96, "text_config": text | kw}


DEEPSEEK_YARN = {**YARN, "type": "yarn", "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0}

FAMILIES = {
    "llama": {
        "base": of("llama", tie_word_embeddings=True),
        "untied-bias": of("llama", tie_word_embeddings=False, attention_bias=True, mlp_bias=True, head_dim=32,
                          rope_theta=100000.0),
        "llama3-rope": of("llama", rope_scaling=LLAMA3, rope_traditional=True, num_key_value_heads="absent"),
        "linear-rope": of("llama", rope_scaling={"type": "linear", "factor": 2.0}),
        "yarn-rope": of("llama", rope_scaling=YARN),
        "window": of("llama", sliding_window=6, layer_types=["sliding_attention", "full_attention"]),
        "window-edge": of("llama", sliding_window=17, layer_types=["full_attention", "sliding_attention"]),
        "window-late": of("llama", sliding_window=20, layer_types=["sliding_attention", "full_attention"]),
    },
    "qwen2": {
        "base": of("qwen2", tie_word_embeddings=True, rope_theta=1000000.0),
        "untied": of("qwen2", tie_word_embeddings=False, rope_theta=10000.0),
    },
    "qwen3": {
        "base": of("qwen3", tie_word_embeddings=True, rope_theta=1000000.0, head_dim=32),
        "untied-yarn": of("qwen3", tie_word_embeddings=False, rope_theta=10000.0, head_dim=16, rope_scaling=YARN),
    },
    "smollm3": {
        "base": of("smollm3", num_hidden_layers=4, tie_word_embeddings=True),
        "list": of("smollm3", no_rope_layers=[0, 1], tie_word_embeddings=False),
    },
    "seed_oss": {
        "base": of("seed_oss", head_dim=32, attention_bias=True, tie_word_embeddings=False),
        "biases": of("seed_oss", head_dim=16, attention_out_bias=True, mlp_bias=True, tie_word_embeddings=False),
    },
    "internlm3": {
        "base": of("internlm3"),
        "biases": of("internlm3", bias=True, qkv_bias=True, tie_word_embeddings=True,
                     rope_scaling={"rope_type": "linear", "factor": 2.0}),
    },
    "telechat3": {
        "base": of("telechat3", rope_theta=10000.0),
        "biases": of("telechat3", rope_theta=1000000.0, mlp_bias=True, attention_bias=True, head_dim=32,
                     rope_scaling={**YARN, "rope_type": "telechat3-yarn"}),
    },
    "mimo": {"base": of("mimo"), "tied": of("mimo", tie_word_embeddings=True, rope_theta=640000.0)},
    "helium": {
        "base": of("helium", attention_bias=False, head_dim=16, mlp_bias=False, rope_theta=100000.0,
                   tie_word_embeddings=False),
        "biases": of("helium", attention_bias=True, head_dim=32, mlp_bias=True, rope_theta=100000.0,
                     tie_word_embeddings=False),
    },
    "ernie4_5": {
        "base": of("ernie4_5", head_dim=32, rope_theta=500000.0, use_bias=False, tie_word_embeddings=True),
        "biases": of("ernie4_5", head_dim=None, rope_theta=500000.0, use_bias=True, tie_word_embeddings=False),
    },
    "granite": {
        "base": of("granite", logits_scaling=8.0, attention_multiplier=0.0625, embedding_multiplier=12.0,
                   residual_multiplier=0.22, attention_bias=False, mlp_bias=False, rope_theta=10000.0),
        "biases": of("granite", logits_scaling=4.0, attention_multiplier=0.25, embedding_multiplier=3.0,
                     residual_multiplier=0.5, attention_bias=True, mlp_bias=True, rope_theta=10000.0,
                     tie_word_embeddings=False),
    },
    "minicpm": {
        "base": of("minicpm", dim_model_base=16, scale_depth=1.4, scale_emb=12.0),
    },
    "hunyuan_v1_dense": {
        "base": of("hunyuan_v1_dense", tie_word_embeddings=True),
        "alpha": of("hunyuan_v1_dense", head_dim=32, attention_bias=True,
                    rope_scaling={"alpha": 1000.0, "factor": 1.0, "type": "dynamic"}),
        "no-norm": of("hunyuan_v1_dense", use_qk_norm=False),
    },
    "exaone": {
        "base": of("exaone", num_hidden_layers="absent", num_layers=2, rms_norm_eps="absent",
                   layer_norm_epsilon=1e-5, rope_theta=500000.0),
        "biases": of("exaone", num_hidden_layers="absent", num_layers=2, rms_norm_eps="absent",
                     layer_norm_epsilon=1e-5, rope_theta=500000.0, attention_bias=True, mlp_bias=True, head_dim=16,
                     tie_word_embeddings=False, rope_scaling=LLAMA3),
    },
    "qwen": {
        "base": of("qwen", kv_channels=16, layer_norm_epsilon=1e-6, rms_norm_eps="absent", num_key_value_heads="absent"),
        "biases": of("qwen", kv_channels=16, layer_norm_epsilon=1e-6, rms_norm_eps="absent", no_bias=False,
                     num_key_value_heads="absent"),
    },
    "gemma": {"base": of("gemma", head_dim=32)},
    "gemma2": {
        "base": of("gemma2", head_dim=32),
        "scalars": of("gemma2", head_dim=16, attn_logit_softcapping=5.0, final_logit_softcapping=3.0,
                      query_pre_attn_scalar=64.0),
    },
    "gemma3_text": {
        "base": of("gemma3_text", head_dim=32, num_hidden_layers=4, sliding_window=6, sliding_window_pattern=2),
        "scaled": of("gemma3_text", head_dim=32, num_hidden_layers=3, sliding_window=64, sliding_window_pattern=3,
                     query_pre_attn_scalar=32, rope_scaling={"rope_type": "linear", "factor": 8.0}),
    },
    "phi": {
        "base": of("phi", layer_norm_eps=1e-5, rms_norm_eps="absent", partial_rotary_factor=0.5),
    },
    "phi3": {
        "base": of("phi3"),
        "longrope": of("phi3", rope_scaling={"type": "longrope", "long_factor": [1.0 + k for k in range(8)],
                                             "short_factor": [1.0] * 8}, original_max_position_embeddings=128),
        "partial": of("phi3", partial_rotary_factor=0.5, tie_word_embeddings=True,
                      rope_scaling={"type": "linear", "factor": 2.0, "long_factor": [1.0]}),
    },
    "glm": {
        "base": of("glm", head_dim=16),
        "biases": of("glm", head_dim=32, attention_bias=True, tie_word_embeddings=False),
    },
    "glm4": {
        "base": of("glm4", head_dim=16, attention_bias=False, partial_rotary_factor=0.5, rope_theta=10000.0),
        "biases": of("glm4", head_dim=32, attention_bias=True, partial_rotary_factor=1.0, rope_theta=10000.0,
                     rope_traditional=False),
    },
    "olmo2": {
        "base": of("olmo2"),
        "biases": of("olmo2", attention_bias=True, mlp_bias=True, tie_word_embeddings=False, head_dim=32),
    },
    "olmo3": {
        "base": of("olmo3", num_hidden_layers=4, sliding_window=6, rope_theta=500000.0, rope_scaling=YARN),
        "types": of("olmo3", sliding_window=5, rope_theta=10000.0, tie_word_embeddings=True,
                    layer_types=["full_attention", "sliding_attention"]),
    },
    "cohere2": {
        "base": of("cohere2", num_hidden_layers=4, head_dim=16, layer_norm_eps=1e-5, rms_norm_eps="absent",
                   sliding_window=6, sliding_window_pattern=2),
        "biases": of("cohere2", num_hidden_layers=4, head_dim=16, layer_norm_eps=1e-5, rms_norm_eps="absent", sliding_window=64,
                     attention_bias=True, layer_norm_bias=True, logit_scale=0.25),
    },
    "exaone4": {
        "base": of("exaone4", num_hidden_layers=4, rope_theta=1000000.0, head_dim=32, tie_word_embeddings=False,
                   rope_scaling=LLAMA3, sliding_window=6, sliding_window_pattern="LLG"),
        "full": of("exaone4", rope_theta=1000000.0, head_dim=16, tie_word_embeddings=True, rope_scaling=LLAMA3,
                   sliding_window=None, sliding_window_pattern=None),
    },
    "starcoder2": {
        "base": of("starcoder2", norm_epsilon=1e-5, rms_norm_eps="absent"),
        "untied": of("starcoder2", norm_epsilon=1e-5, rms_norm_eps="absent", tie_word_embeddings=False,
                     rope_theta=1000000.0),
    },
    "llama4_text": {
        "base": of("llama4_text", intermediate_size_mlp=192, head_dim=16, rope_theta=500000.0, tie_word_embeddings=False,
                   no_rope_layers=[1, 0], use_qk_norm=True),
        "no-norm": of("llama4_text", intermediate_size_mlp=128, head_dim=32, rope_theta=500000.0,
                      tie_word_embeddings=False, no_rope_layers=[1, 1], use_qk_norm=False),
    },
    "llama4": {
        "base": llama4(),
        "experts": llama4(num_hidden_layers=4, interleave_moe_layer_step=2, attention_chunk_size=5, floor_scale=3),
        "all-experts": llama4(num_hidden_layers=4, interleave_moe_layer_step=1, head_dim=32, num_local_experts=4,
                              attention_bias=True, use_qk_norm=False, rope_scaling=LLAMA3, attention_chunk_size=17,
                              attn_temperature_tuning=False),
        "raw": llama4(num_hidden_layers=4, interleave_moe_layer_step=2),
    },
    "lille-130m": {"base": lille()},
    "deepseek_v2": {
        "base": latent("deepseek_v2", rope_scaling={**DEEPSEEK_YARN, "mscale": 0.707, "mscale_all_dim": 0.707}),
        "experts": latent("deepseek_v2", num_hidden_layers=3, q_lora_rank=None, n_routed_experts=8, num_experts_per_tok=3,
                          topk_method="greedy", n_shared_experts=2, moe_intermediate_size=64, first_k_dense_replace=1,
                          routed_scaling_factor=1.0, rope_scaling=DEEPSEEK_YARN, qk_nope_head_dim=24, kv_lora_rank=128),
        "limited": latent("deepseek_v2", attention_bias=True, n_routed_experts=9, num_experts_per_tok=2, n_group=3,
                          topk_group=1, topk_method="group_limited_greedy", moe_intermediate_size=64,
                          routed_scaling_factor=4.0, rope_scaling={**DEEPSEEK_YARN, "mscale": 1.0, "mscale_all_dim": 0.0}),
    },
    "deepseek_v3": {
        "base": latent("deepseek_v3", rope_scaling=DEEPSEEK_YARN),
        "experts": latent("deepseek_v3", num_hidden_layers=3, n_routed_experts=8, num_experts_per_tok=3, n_group=4,
                          topk_group=2, n_shared_experts=2, moe_intermediate_size=64, first_k_dense_replace=1,
                          routed_scaling_factor=2.5, rope_scaling={**DEEPSEEK_YARN, "mscale_all_dim": 0.5}),
        "no-q-lora": latent("deepseek_v3", num_hidden_layers=4, q_lora_rank=None, attention_bias=True,
                            num_attention_heads=3, kv_lora_rank=48, qk_nope_head_dim=32, v_head_dim=40,
                            n_routed_experts=6, num_experts_per_tok=2, norm_topk_prob=False, moe_layer_freq=2,
                            n_shared_experts=None, moe_intermediate_size=64, rope_scaling=None),
        "raw": latent("deepseek_v3", n_routed_experts=4, num_experts_per_tok=2, first_k_dense_replace=1,
                      n_shared_experts=1, moe_intermediate_size=64),
    },
    "glm4_moe": {
        "base": of("glm4_moe", num_hidden_layers=3, head_dim=32, moe_intermediate_size=64, norm_topk_prob=True,
                   n_group=1, topk_group=1, n_shared_experts=1, n_routed_experts=8, routed_scaling_factor=2.5,
                   num_experts_per_tok=3, first_k_dense_replace=1, rope_theta=10000.0, rope_scaling=None,
                   use_qk_norm=True, tie_word_embeddings=False, attention_bias=True, partial_rotary_factor=0.5),
        "groups": of("glm4_moe", head_dim=16, moe_intermediate_size=64, norm_topk_prob=False, n_group=2, topk_group=1,
                     n_shared_experts=2, n_routed_experts=6, routed_scaling_factor=1.0, num_experts_per_tok=2,
                     first_k_dense_replace=0, rope_theta=1000000.0, rope_scaling=None, use_qk_norm=False,
                     tie_word_embeddings=True, attention_bias=False, partial_rotary_factor=1.0),
    },
    "glm4_moe_lite": {
        "base": latent("glm4_moe_lite", n_routed_experts=6, num_experts_per_tok=2, moe_intermediate_size=64,
                       first_k_dense_replace=1, routed_scaling_factor=1.8),
    },
    "kimi_k25": {
        "base": {"model_type": "kimi_k25", "vocab_size": 96, "text_config": latent("kimi_k2")},
    },
    "qwen2_moe": {
        "base": of("qwen2_moe", num_experts_per_tok=2, num_experts=6, moe_intermediate_size=64,
                   shared_expert_intermediate_size=128),
    },
    "qwen3_moe": {
        "base": of("qwen3_moe", num_experts=8, num_experts_per_tok=3, decoder_sparse_step=1, mlp_only_layers=[],
                   moe_intermediate_size=64, head_dim=32, rope_theta=1000000.0, tie_word_embeddings=False,
                   norm_topk_prob=True),
        "mixed": of("qwen3_moe", num_hidden_layers=4, num_experts=4, num_experts_per_tok=4, decoder_sparse_step=2,
                    mlp_only_layers=[1], moe_intermediate_size=64, head_dim=16, rope_theta=10000.0,
                    tie_word_embeddings=True, norm_topk_prob=False),
    },
    "qwen3_5": {
        "base": {"model_type": "qwen3_5", "vocab_size": 96, "text_config": qwen3_5()},
        "flat": {**qwen3_5(num_hidden_layers=2, full_attention_interval=2, tie_word_embeddings=True,
                           attention_bias=True), "model_type": "qwen3_5"},
    },
    "qwen3_5_moe": {
        "base": {"model_type": "qwen3_5_moe", "vocab_size": 96,
                 "text_config": qwen3_5(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=64,
                                        shared_expert_intermediate_size=64)},
    },
    "gemma3": {
        "base": {"model_type": "gemma3", "vocab_size": 96,
                 "text_config": of("gemma3_text", head_dim=32, num_hidden_layers=4, sliding_window=6,
                                   sliding_window_pattern=2)},
    },
}
