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

FAMILIES = {
    "llama": {
        "base": of("llama", tie_word_embeddings=True),
        "untied-bias": of("llama", tie_word_embeddings=False, attention_bias=True, mlp_bias=True, head_dim=32,
                          rope_theta=100000.0),
        "llama3-rope": of("llama", rope_scaling=LLAMA3, rope_traditional=True, num_key_value_heads="absent"),
        "linear-rope": of("llama", rope_scaling={"type": "linear", "factor": 2.0}),
        "yarn-rope": of("llama", rope_scaling=YARN),
        "window": of("llama", sliding_window=6, layer_types=["sliding_attention", "full_attention"]),
    },
    "qwen2": {
        "base": of("qwen2", tie_word_embeddings=True, rope_theta=1000000.0),
        "untied": of("qwen2", tie_word_embeddings=False, rope_theta=10000.0),
    },
    "qwen3": {
        "base": of("qwen3", tie_word_embeddings=True, rope_theta=1000000.0, head_dim=32),
        "untied-yarn": of("qwen3", tie_word_embeddings=False, rope_theta=10000.0, head_dim=16, rope_scaling=YARN),
    },
}
