"""A tiny checkpoint with random weights and a tokenizer of its own, for comparisons with mlx-lm's programs."""
import json

TEMPLATE = ("{%- for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
TEXT = ["The capital of France is Paris, and the quick brown fox jumps over the lazy dog.",
        "Hello! How are you today? I am fine, thank you. What is the weather like?",
        "One two three four five six seven eight nine ten eleven twelve thirteen.",
        "def main(argc, argv): return [x * x for x in range(argc)]  # numbers: 0 1 2 3 4 5 6 7 8 9"]


def make_tokenizer(folder, n_vocab):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(vocab_size=n_vocab, special_tokens=special, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(TEXT * 4, trainer)
    tok.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
              "chat_template": TEMPLATE, "model_max_length": 2048}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tok


def make_model(folder, dtype="float32", seed=0):
    """Write a Qwen3 model of 2 layers into the folder; returns its tokenizer (of the package tokenizers)."""
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models import qwen3
    folder.mkdir(parents=True, exist_ok=True)
    tok = make_tokenizer(folder, 384)
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
              "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
              "rms_norm_eps": 1e-6, "vocab_size": tok.get_vocab_size(), "max_position_embeddings": 512,
              "rope_theta": 10000.0, "tie_word_embeddings": True, "torch_dtype": dtype,
              "eos_token_id": tok.token_to_id("<|im_end|>")}
    (folder / "config.json").write_text(json.dumps(config))
    mx.random.seed(seed)
    args = qwen3.ModelArgs.from_dict(config)
    model = qwen3.Model(args)
    weights = {}
    for name, value in tree_flatten(model.parameters()):
        shape = value.shape
        random = mx.random.normal(shape) * (0.3 if len(shape) > 1 else 0.1)
        weights[name] = (random + (1 if len(shape) == 1 else 0)).astype(getattr(mx, dtype))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    index = {"metadata": {}, "weight_map": {name: "model.safetensors" for name in weights}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return tok
