"""`quern convert` against its oracles: gguf's own dequantization, llama.cpp's tokenizer, mlx-lm.

Environment: QUERN_BIN (default build/release/quern), QUERN_GGUF (a real GGUF file; the tests of the
real import are skipped without it).
"""
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

mx = pytest.importorskip("mlx.core")
gguf = pytest.importorskip("gguf")

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
QUERN = os.environ.get("QUERN_BIN", os.path.join(ROOT, "build", "release", "quern"))
REAL = os.environ.get("QUERN_GGUF", "")

TEXTS = [
    "Hello world", "  two  spaces", "def f(x):\n    return x**2\n", "日本語テスト 中文 한국어",
    "emoji 😀👍🏽 👩‍👩‍👧",
    "12345 67,890.12", "it's we're I'll YOU'RE", "\n\n\n\t tab", "Ünïcödé ß",
    "a" * 30, "x=1;y=2 // comment", "   ", "العربية עברית", "𝕏 math ∑∫", "a\r\nb", " lead",
    "trail ",
    "don't 'quote' \"double\"", "<html><body>&amp;</body></html>", "1 22 333 4444 55555",
]


def have_convert():
    if not os.path.exists(QUERN):
        return False
    done = subprocess.run([QUERN, "convert", "--help"], capture_output=True, check=False)
    return done.returncode == 0


pytestmark = pytest.mark.skipif(not have_convert(), reason=f"{QUERN} has no convert")


def convert(source, out, *flags):
    argv = [QUERN, "convert", str(source), "--mlx-path", str(out), *flags]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    leftovers = [n for n in os.listdir(os.path.dirname(str(out))) if ".partial-" in n]
    assert not leftovers
    return done


def refuse(source, out, *flags):
    argv = [QUERN, "convert", str(source), "--mlx-path", str(out), *flags]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert ".partial-" not in " ".join(os.listdir(os.path.dirname(str(out))))
    return done.stderr


def tensors(folder):
    out = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            out.update(mx.load(os.path.join(str(folder), name)))
    return out


def config(folder):
    with open(os.path.join(str(folder), "config.json"), encoding="utf-8") as f:
        return json.load(f)


def bits_of(array):
    return np.array(array.view(mx.uint8)) if array.dtype != mx.uint8 else np.array(array)


def same_bits(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and np.array_equal(bits_of(a), bits_of(b))


# ---- GGUF: every tensor type ----

HIDDEN, WIDE, HEADS, KV_HEADS, LAYERS, VOCAB = 256, 512, 4, 2, 2, 300
T = gguf.GGMLQuantizationType
EXACT = [T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0, T.MXFP4]
NEAR = [T.Q4_K, T.Q5_K]
AGAIN = [T.Q2_K, T.Q3_K, T.Q6_K, T.IQ4_NL]
DENSE = [T.F16, T.BF16, T.F32]
# Where the float16 scales stand inside a block: random bytes there would be infinities.
HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q2_K: [80, 82],
          T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_NL: [0]}


def random_blocks(rng, kind, rows, cols):
    """Rows of blocks of random bytes with sane scales."""
    if kind == T.F32:
        return rng.standard_normal((rows, cols)).astype(np.float32)
    if kind == T.F16:
        return rng.standard_normal((rows, cols)).astype(np.float16)
    if kind == T.BF16:
        f = rng.standard_normal((rows, cols)).astype(np.float32)
        return (f.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    items, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * cols // items, size), dtype=np.uint8)
    for at in HALVES.get(kind, []):
        half = rng.uniform(-0.02, 0.02, len(blocks)).astype(np.float16)
        blocks[:, at:at + 2] = half.view(np.uint8).reshape(-1, 2)
    if kind == T.MXFP4:
        blocks[:, 0] = rng.integers(118, 126, len(blocks))
    return blocks.reshape(rows, -1)


def reference(data, kind):
    if kind == T.F32:
        return data
    return gguf.quants.dequantize(data, kind)


def unpermute(w, heads):
    return w.reshape(heads, w.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)


def add_byte_tokenizer(w):
    """The 256 byte tokens of byte-level BPE, no merges worth naming."""
    chars = [chr(c) for c in list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))]
    chars += [chr(256 + i) for i in range(256 - len(chars))]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(chars + ["<end>", "ab"])
    w.add_token_types([1] * 256 + [3, 1])
    w.add_token_merges(["a b"])
    w.add_eos_token_id(256)


def gguf_header(path, arch, **_):
    w = gguf.GGUFWriter(str(path), arch)
    w.add_name("tiny")
    w.add_block_count(LAYERS)
    w.add_embedding_length(HIDDEN)
    w.add_feed_forward_length(WIDE)
    w.add_context_length(512)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV_HEADS)
    w.add_layer_norm_rms_eps(1e-6)
    w.add_rope_freq_base(5000.0)
    w.add_vocab_size(VOCAB)
    return w


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def matrices(arch):
    kv = HIDDEN // HEADS * KV_HEADS
    yield "token_embd.weight", "model.embed_tokens", VOCAB, HIDDEN, 0
    yield "output.weight", "lm_head", VOCAB, HIDDEN, 0
    for i in range(LAYERS):
        g, m = f"blk.{i}.", f"model.layers.{i}."
        q_heads, k_heads = (HEADS, KV_HEADS) if arch == "llama" else (0, 0)
        yield g + "attn_q.weight", m + "self_attn.q_proj", HIDDEN, HIDDEN, q_heads
        yield g + "attn_k.weight", m + "self_attn.k_proj", kv, HIDDEN, k_heads
        yield g + "attn_v.weight", m + "self_attn.v_proj", kv, HIDDEN, 0
        yield g + "attn_output.weight", m + "self_attn.o_proj", HIDDEN, HIDDEN, 0
        yield g + "ffn_gate.weight", m + "mlp.gate_proj", WIDE, HIDDEN, 0
        yield g + "ffn_up.weight", m + "mlp.up_proj", WIDE, HIDDEN, 0
        yield g + "ffn_down.weight", m + "mlp.down_proj", HIDDEN, WIDE, 0


def make_gguf(path, arch, kinds, extra=None):
    """A tiny model whose matrices take the types in turn. Returns {module: (type, reference)}."""
    rng = np.random.default_rng(7)
    w = gguf_header(path, arch)
    add_byte_tokenizer(w)
    out = {}
    for i, (name, module, rows, cols, heads) in enumerate(matrices(arch)):
        kind = kinds[i % len(kinds)]
        data = random_blocks(rng, kind, rows, cols)
        w.add_tensor(name, data, raw_dtype=None if kind in (T.F32, T.F16) else kind)
        value = reference(data, kind)
        out[module] = (kind, unpermute(value, heads) if heads else value)
    w.add_tensor("output_norm.weight", np.linspace(0.5, 1.5, HIDDEN, dtype=np.float32))
    for i in range(LAYERS):
        for n in ("attn_norm", "ffn_norm"):
            w.add_tensor(f"blk.{i}.{n}.weight", np.linspace(0.5, 1.5, HIDDEN, dtype=np.float32))
    for name, value in (extra or {}).items():
        w.add_tensor(name, value)
    finish(w)
    return out


def spec_of(cfg, module):
    q = cfg.get("quantization")
    s = q.get(module, q) if q else False
    return s if s is not False else None


def float_weight(t, module, spec):
    """The value of a module in float32, its scales widened first."""
    w = t[module + ".weight"]
    if spec is None:
        return np.array(w.astype(mx.float32))
    s, b = t[module + ".scales"], t.get(module + ".biases")
    if spec["mode"] != "affine":
        y = mx.dequantize(w, s, group_size=32, bits=4, mode=spec["mode"])
        return np.array(y.astype(mx.float32))
    y = mx.dequantize(w, s.astype(mx.float32), b.astype(mx.float32),
                      group_size=spec["group_size"], bits=spec["bits"])
    return np.array(y)


@pytest.mark.parametrize("kinds", [EXACT, NEAR, AGAIN, DENSE],
                         ids=["exact", "near", "again", "dense"])
def test_types(tmp_path, kinds):
    want = make_gguf(tmp_path / "m.gguf", "llama", kinds)
    convert(tmp_path / "m.gguf", tmp_path / "out")
    t, cfg = tensors(tmp_path / "out"), config(tmp_path / "out")
    for module, (kind, value) in want.items():
        spec = spec_of(cfg, module)
        got = float_weight(t, module, spec)
        if kind in EXACT:
            assert np.array_equal(got, value), (module, kind)
        elif kind in NEAR:
            s = np.repeat(np.array(t[module + ".scales"].astype(mx.float32)), 32, axis=1)
            b = np.repeat(np.array(t[module + ".biases"].astype(mx.float32)), 32, axis=1)
            top = 15 if kind == T.Q4_K else 31
            assert np.all(np.abs(got - value) <= (np.abs(s) * top + np.abs(b)) * 2.0**-11)
        elif kind in AGAIN:
            again = mx.quantize(mx.array(value).astype(mx.float16), group_size=32, bits=8)
            mine = [t[module + n] for n in (".weight", ".scales", ".biases")]
            assert all(same_bits(a, b) for a, b in zip(mine, again)), (module, kind)
        else:
            half = mx.array(value).astype(mx.float16)
            assert same_bits(t[module + ".weight"], half), (module, kind)
    assert t["model.norm.weight"].dtype == mx.float16


@pytest.mark.parametrize("arch", ["llama", "qwen2"])
def test_dequantized_equals_reference(tmp_path, arch):
    want = make_gguf(tmp_path / "m.gguf", arch, EXACT + NEAR + AGAIN + DENSE)
    convert(tmp_path / "m.gguf", tmp_path / "out", "-d", "--dtype", "float32")
    t = tensors(tmp_path / "out")
    assert "quantization" not in config(tmp_path / "out")
    for module, (kind, value) in want.items():
        got = np.array(t[module + ".weight"])
        assert np.array_equal(got, value.astype(np.float32)), (module, kind)


def test_float32_scales_are_exact(tmp_path):
    want = make_gguf(tmp_path / "m.gguf", "llama", EXACT + NEAR)
    convert(tmp_path / "m.gguf", tmp_path / "out", "--dtype", "float32")
    t, cfg = tensors(tmp_path / "out"), config(tmp_path / "out")
    for module, (kind, value) in want.items():
        assert np.array_equal(float_weight(t, module, spec_of(cfg, module)), value), (module, kind)


def test_requantized_gguf(tmp_path):
    want = make_gguf(tmp_path / "m.gguf", "llama", EXACT)
    convert(tmp_path / "m.gguf", tmp_path / "out", "-q", "--q-bits", "3")
    t = tensors(tmp_path / "out")
    for module, (kind, value) in want.items():
        again = mx.quantize(mx.array(value).astype(mx.float16), group_size=64, bits=3)
        mine = [t[module + n] for n in (".weight", ".scales", ".biases")]
        assert all(same_bits(a, b) for a, b in zip(mine, again)), (module, kind)


def test_folder_opens_in_mlx_lm(tmp_path):
    from mlx_lm import load
    make_gguf(tmp_path / "m.gguf", "llama", EXACT + NEAR + AGAIN)
    convert(tmp_path / "m.gguf", tmp_path / "out")
    model, tokenizer = load(str(tmp_path / "out"))
    model.set_dtype(mx.float32)  # the random blocks' sums leave float16
    logits = model(mx.array([tokenizer.encode("ab c")]))
    assert logits.shape[-1] == VOCAB and bool(mx.all(mx.isfinite(logits)))


# ---- GGUF: refusals ----

def test_unknown_architecture(tmp_path):
    w = gguf_header(tmp_path / "m.gguf", "falcon")
    finish(w)
    assert "falcon" in refuse(tmp_path / "m.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_unmapped_tensor(tmp_path):
    w = gguf_header(tmp_path / "m.gguf", "llama")
    w.add_tensor("surprise.weight", np.zeros((4, 32), dtype=np.float32))
    for name, _, rows, cols, _ in matrices("llama"):
        w.add_tensor(name, np.zeros((rows, cols), dtype=np.float32))
    w.add_tensor("output_norm.weight", np.ones(HIDDEN, dtype=np.float32))
    for i in range(LAYERS):
        for n in ("attn_norm", "ffn_norm"):
            w.add_tensor(f"blk.{i}.{n}.weight", np.ones(HIDDEN, dtype=np.float32))
    finish(w)
    assert "surprise.weight" in refuse(tmp_path / "m.gguf", tmp_path / "out")


def test_truncated(tmp_path):
    make_gguf(tmp_path / "m.gguf", "llama", [T.Q4_0])
    data = (tmp_path / "m.gguf").read_bytes()
    for n in (0, 3, 20, 100, 999, 5000, len(data) // 2, len(data) - 40):
        (tmp_path / "cut.gguf").write_bytes(data[:n])
        refuse(tmp_path / "cut.gguf", tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_existing_output(tmp_path):
    make_gguf(tmp_path / "m.gguf", "llama", [T.Q4_0])
    (tmp_path / "out").mkdir()
    assert "exists" in refuse(tmp_path / "m.gguf", tmp_path / "out")
    assert os.listdir(tmp_path / "out") == []


def test_split_files(tmp_path):
    make_gguf(tmp_path / "m.gguf", "llama", EXACT)
    convert(tmp_path / "m.gguf", tmp_path / "whole")
    r = gguf.GGUFReader(str(tmp_path / "m.gguf"))
    half = len(r.tensors) // 2
    for part in range(2):
        w = gguf_header(tmp_path / f"s-0000{part + 1}-of-00002.gguf", "llama")
        w.add_uint16("split.no", part)
        w.add_uint16("split.count", 2)
        if part == 0:
            add_byte_tokenizer(w)
        for x in r.tensors[half * part:half + part * len(r.tensors)]:
            dense = x.tensor_type in (T.F32, T.F16)
            w.add_tensor(x.name, np.array(x.data), raw_dtype=None if dense else x.tensor_type)
        finish(w)
    convert(tmp_path / "s-00002-of-00002.gguf", tmp_path / "joined")
    a, b = tensors(tmp_path / "whole"), tensors(tmp_path / "joined")
    assert a.keys() == b.keys() and all(same_bits(a[k], b[k]) for k in a)
    os.remove(tmp_path / "s-00002-of-00002.gguf")
    message = refuse(tmp_path / "s-00001-of-00002.gguf", tmp_path / "x")
    assert "s-00002-of-00002.gguf" in message


# ---- GGUF: tokenizers ----

def vocab_only(path, fill):
    """A GGUF file with a tokenizer and the least model around it."""
    w = gguf_header(path, "llama")
    n = fill(w)
    rng = np.random.default_rng(1)
    w.add_tensor("token_embd.weight", rng.standard_normal((n, HIDDEN)).astype(np.float16))
    w.add_tensor("output_norm.weight", np.ones(HIDDEN, dtype=np.float32))
    for name, _, rows, cols, _ in matrices("llama"):
        if name.startswith("blk"):
            w.add_tensor(name, np.zeros((rows, cols), dtype=np.float16))
    for i in range(LAYERS):
        for norm in ("attn_norm", "ffn_norm"):
            w.add_tensor(f"blk.{i}.{norm}.weight", np.ones(HIDDEN, dtype=np.float32))
    finish(w)


def compare_tokenizers(gguf_path, folder, texts):
    llama_cpp = pytest.importorskip("llama_cpp")
    from tokenizers import Tokenizer
    theirs = llama_cpp.Llama(str(gguf_path), vocab_only=True, verbose=False)
    ours = Tokenizer.from_file(os.path.join(str(folder), "tokenizer.json"))
    for text in texts:
        want = theirs.tokenize(text.encode(), add_bos=True, special=True)
        assert ours.encode(text).ids == want, text


def test_sentencepiece(tmp_path):
    words = ["▁", "t", "h", "e", "th", "▁the", "▁th", "he", "▁h", "▁he", "l", "o", "ll", "lo",
             "▁hel", "▁hello", "hello", "w", "r", "d", "or", "ld", "▁w", "▁world", "wor", "▁wor",
             "a", "é", "日", "本", "日本", "1", "2", "12", "▁1", ".", ",", "\n", "▁▁", "▁▁▁▁"]

    def fill(w):
        tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + words
        scores = [0.0] * 259 + [-float(i) for i in range(len(words))]
        # Longer pieces first, as trained scores have it; single characters last.
        for i, word in enumerate(words):
            long_first = -float(100 - 10 * len(word) + i % 7)
            scores[259 + i] = -1000.0 - i if len(word) == 1 else long_first
        w.add_tokenizer_model("llama")
        w.add_token_list(tokens)
        w.add_token_scores(scores)
        w.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(words))
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        w.add_unk_token_id(0)
        w.add_add_bos_token(True)
        return len(tokens)

    vocab_only(tmp_path / "m.gguf", fill)
    convert(tmp_path / "m.gguf", tmp_path / "out")
    compare_tokenizers(tmp_path / "m.gguf", tmp_path / "out",
                       ["hello world", "the hello the", "日本 12", "a  b", "    the", "é😀",
                        "hello\nworld", "1212.", "x"])
    from transformers import AutoTokenizer
    t = AutoTokenizer.from_pretrained(str(tmp_path / "out"))
    assert t.decode(t.encode("hello world 日本 😀"), skip_special_tokens=True) == "hello world 日本 😀"


needs_real = pytest.mark.skipif(not os.path.exists(REAL), reason="QUERN_GGUF names no file")


@needs_real
@pytest.mark.parametrize("pre", ["smollm", "gpt-2", "llama-bpe", "qwen2"])
def test_byte_level_kinds(tmp_path, pre):
    fields = gguf.GGUFReader(REAL).fields
    texts = {k: fields["tokenizer.ggml." + k].contents()
             for k in ("tokens", "merges", "token_type")}

    def fill(w):
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre(pre)
        w.add_token_list(texts["tokens"])
        w.add_token_types(texts["token_type"])
        w.add_token_merges(texts["merges"])
        w.add_bos_token_id(1)
        w.add_eos_token_id(2)
        return len(texts["tokens"])

    vocab_only(tmp_path / "m.gguf", fill)
    convert(tmp_path / "m.gguf", tmp_path / "out")
    compare_tokenizers(tmp_path / "m.gguf", tmp_path / "out",
                       TEXTS + ["<|im_start|>user\nhi<|im_end|>"])


# ---- GGUF: the real model ----

@needs_real
def test_real_import(tmp_path):
    from mlx_lm import generate, load
    from transformers import AutoTokenizer
    out = tmp_path / "real"
    convert(REAL, out)
    t, cfg = tensors(out), config(out)
    seen = 0
    for x in gguf.GGUFReader(REAL).tensors:
        if len(x.shape) < 2:
            continue
        value = reference(x.data, x.tensor_type)
        name = x.name.replace("token_embd.weight", "model.embed_tokens").replace(".weight", "")
        for a, b in (("blk.", "model.layers."), ("attn_output", "self_attn.o_proj"),
                     ("attn_", "self_attn."), ("ffn_", "mlp.")):
            name = name.replace(a, b)
        if not name.endswith(("embed_tokens", "o_proj")):
            name += "_proj"
        heads = {"q_proj": cfg["num_attention_heads"], "k_proj": cfg["num_key_value_heads"]}
        heads = heads.get(name.split(".")[-1])
        value = unpermute(value, heads) if heads else value
        assert np.array_equal(float_weight(t, name, spec_of(cfg, name)), value), name
        seen += 1
    assert seen > 200
    compare_tokenizers(REAL, out, TEXTS)
    auto = AutoTokenizer.from_pretrained(str(out))
    for text in TEXTS:
        assert auto.decode(auto.encode(text)) == text
    model, tokenizer = load(str(out))
    model.set_dtype(mx.float32)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True)
    assert "Paris" in generate(model, tokenizer, prompt=prompt, max_tokens=16)


# ---- safetensors ----

def tiny_model(folder, model_type, tokenizer, dtype, **more):
    """A random mlx-lm model as a checkpoint folder."""
    from mlx.utils import tree_flatten
    from mlx_lm.utils import _get_classes
    cfg = {"model_type": model_type, "hidden_size": 128, "num_hidden_layers": 4,
           "intermediate_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2,
           "head_dim": 32, "rms_norm_eps": 1e-6, "vocab_size": 320, "rope_theta": 10000.0,
           "max_position_embeddings": 512, "tie_word_embeddings": True,
           "torch_dtype": dtype, **more}
    model_class, args_class = _get_classes(cfg)
    mx.random.seed(3)
    model = model_class(args_class.from_dict(cfg))
    model.set_dtype(getattr(mx, dtype))
    weights = {k: mx.random.normal(v.shape).astype(v.dtype)
               for k, v in tree_flatten(model.parameters())}
    os.makedirs(folder)
    mx.save_safetensors(os.path.join(folder, "model.safetensors"), weights,
                        metadata={"format": "mlx"})
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(cfg, f)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(tokenizer, name), os.path.join(folder, name))
    return cfg


@pytest.fixture(scope="module")
def tokenizer_folder(tmp_path_factory):
    d = tmp_path_factory.mktemp("tok")
    make_gguf(d / "m.gguf", "llama", [T.Q4_0])
    convert(d / "m.gguf", d / "out")
    return str(d / "out")


MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
       "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}

CASES = {
    "affine4": ("llama", "float16", {}, ["-q"], {"quantize": True}),
    "affine2": ("llama", "bfloat16", {}, ["-q", "--q-bits", "2", "--q-group-size", "32"],
                {"quantize": True, "q_bits": 2, "q_group_size": 32}),
    "affine3": ("llama", "float32", {}, ["-q", "--q-bits", "3"], {"quantize": True, "q_bits": 3}),
    "affine5": ("llama", "bfloat16", {}, ["-q", "--q-bits", "5"], {"quantize": True, "q_bits": 5}),
    "affine6": ("llama", "bfloat16", {}, ["-q", "--q-bits", "6", "--q-group-size", "128"],
                {"quantize": True, "q_bits": 6, "q_group_size": 128}),
    "affine8": ("llama", "bfloat16", {}, ["-q", "--q-bits", "8"], {"quantize": True, "q_bits": 8}),
    "mxfp4": ("llama", "bfloat16", {}, ["-q", "--q-mode", "mxfp4"],
              {"quantize": True, "q_mode": "mxfp4"}),
    "mxfp8": ("llama", "bfloat16", {}, ["-q", "--q-mode", "mxfp8"],
              {"quantize": True, "q_mode": "mxfp8"}),
    "nvfp4": ("llama", "bfloat16", {}, ["-q", "--q-mode", "nvfp4"],
              {"quantize": True, "q_mode": "nvfp4"}),
    "cast": ("llama", "float32", {}, ["--dtype", "bfloat16"], {"dtype": "bfloat16"}),
    "copy": ("qwen3", "bfloat16", {}, [], {}),
    "cast_quantize": ("qwen3", "float32", {}, ["-q", "--dtype", "float16"],
                      {"quantize": True, "dtype": "float16"}),
    "untied": ("qwen2", "bfloat16", {"tie_word_embeddings": False}, ["-q"], {"quantize": True}),
    "moe": ("qwen3_moe", "bfloat16", MOE, ["-q"], {"quantize": True}),
    "moe_mxfp4": ("qwen3_moe", "bfloat16", MOE, ["-q", "--q-mode", "mxfp4"],
                  {"quantize": True, "q_mode": "mxfp4"}),
    "mixed_2_6": ("llama", "bfloat16", {"tie_word_embeddings": False},
                  ["-q", "--quant-predicate", "mixed_2_6"],
                  {"quantize": True, "q_group_size": 64, "quant_predicate": "mixed_2_6"}),
    "mixed_3_4": ("llama", "bfloat16", {}, ["-q", "--quant-predicate", "mixed_3_4"],
                  {"quantize": True, "q_group_size": 64, "quant_predicate": "mixed_3_4"}),
    "mixed_3_6": ("llama", "bfloat16", {}, ["-q", "--quant-predicate", "mixed_3_6"],
                  {"quantize": True, "q_group_size": 64, "quant_predicate": "mixed_3_6"}),
    "mixed_4_6": ("qwen3", "bfloat16", {}, ["-q", "--quant-predicate", "mixed_4_6"],
                  {"quantize": True, "q_group_size": 64, "quant_predicate": "mixed_4_6"}),
}


# ---- GGUF: families ----

GGUF_NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "mlp.gate": "ffn_gate_inp",
    "mlp.switch_mlp.gate_proj": "ffn_gate_exps", "mlp.switch_mlp.up_proj": "ffn_up_exps",
    "mlp.switch_mlp.down_proj": "ffn_down_exps", "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
SANDWICH_NAMES = {"post_attention_layernorm": "post_attention_norm",
                  "pre_feedforward_layernorm": "ffn_norm",
                  "post_feedforward_layernorm": "post_ffw_norm"}


def gguf_name(name, arch):
    module, suffix = name.rsplit(".", 1)
    names = {**GGUF_NAMES, **(SANDWICH_NAMES if arch == "gemma2" else {})}
    if not module.startswith("model.layers."):
        return f"{names[module]}.{suffix}"
    layer, rest = module[len("model.layers."):].split(".", 1)
    return f"blk.{layer}.{names[rest]}.{suffix}"


def permute(w, heads):
    return w.reshape(heads, 2, w.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(w.shape)


FAMILIES = {
    "llama": ("llama", {"tie_word_embeddings": False}),
    "llama_biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "qwen2": ("qwen2", {}), "qwen3": ("qwen3", {}), "qwen3moe": ("qwen3_moe", MOE),
    "gemma": ("gemma", {}),
    "gemma2": ("gemma2", {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
                          "query_pre_attn_scalar": 32, "sliding_window": 64}),
}


@pytest.mark.parametrize("family", list(FAMILIES))
def test_family_round_trip(tmp_path, family, tokenizer_folder):
    """A model of each family written as GGUF as llama.cpp's converter lays it out, and back."""
    import mlx_lm
    model_type, more = FAMILIES[family]
    arch = family.split("_")[0]
    cfg = tiny_model(str(tmp_path / "src"), model_type, tokenizer_folder, "float16", **more)
    t = tensors(tmp_path / "src")
    w = gguf.GGUFWriter(str(tmp_path / "m.gguf"), arch)
    for add, name in ((w.add_block_count, "num_hidden_layers"), (w.add_context_length,
                      "max_position_embeddings"), (w.add_embedding_length, "hidden_size"),
                      (w.add_feed_forward_length, "intermediate_size"), (w.add_head_count,
                      "num_attention_heads"), (w.add_head_count_kv, "num_key_value_heads"),
                      (w.add_key_length, "head_dim"), (w.add_value_length, "head_dim"),
                      (w.add_layer_norm_rms_eps, "rms_norm_eps")):
        add(cfg[name])
    if arch == "gemma2":
        w.add_sliding_window(cfg["sliding_window"])
        w.add_attn_logit_softcapping(cfg["attn_logit_softcapping"])
        w.add_final_logit_softcapping(cfg["final_logit_softcapping"])
    if "num_experts" in cfg:
        w.add_expert_count(cfg["num_experts"])
        w.add_expert_used_count(cfg["num_experts_per_tok"])
        w.add_expert_feed_forward_length(cfg["moe_intermediate_size"])
    add_byte_tokenizer(w)
    for name, value in t.items():
        v = np.array(value)
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            v = v.astype(np.float32) + 1
        for part, heads in (("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")):
            if arch == "llama" and part in name:
                v = permute(v, cfg[heads])
        w.add_tensor(gguf_name(name, arch), np.ascontiguousarray(v))
    finish(w)
    convert(tmp_path / "m.gguf", tmp_path / "out")
    got = tensors(tmp_path / "out")
    assert sorted(got) == sorted(t)
    assert not [k for k in t if not same_bits(got[k], t[k])]
    out = config(tmp_path / "out")
    for key, value in cfg.items():
        if key in out and key != "torch_dtype":
            assert out[key] == value, key
    ours, _ = mlx_lm.load(str(tmp_path / "out"))
    theirs, _ = mlx_lm.load(str(tmp_path / "src"))
    ids = mx.array([[1, 2, 3, 250]])
    for m in (ours, theirs):
        m.set_dtype(mx.float32)
    assert same_bits(ours(ids), theirs(ids))


@pytest.mark.parametrize("damage", [False, True])
def test_llama3_rope_table(tmp_path, damage):
    factors = []
    for i in range(HIDDEN // HEADS // 2):
        wave = 2 * np.pi * 5000.0 ** (2 * i / (HIDDEN // HEADS))
        smooth = (8192 / wave - 1) / 3
        factors.append(1.0 if wave < 2048 else 32.0 if wave > 8192
                       else 1 / ((1 - smooth) / 32 + smooth))
    assert 1.0 < factors[-1] <= 32.0
    factors[-1] = 32.0
    if damage:
        factors[3] = 2.0
    else:
        assert 2 * np.pi * 5000.0 ** (2 * 31 / 64) > 8192
    make_gguf(tmp_path / "m.gguf", "llama", [T.Q4_0],
              extra={"rope_freqs.weight": np.array(factors, dtype=np.float32)})
    if damage:
        assert "rope_freqs" in refuse(tmp_path / "m.gguf", tmp_path / "out")
        return
    convert(tmp_path / "m.gguf", tmp_path / "out")
    scaling = config(tmp_path / "out")["rope_scaling"]
    assert scaling["rope_type"] == "llama3" and scaling["factor"] == 32.0


def effective(cfg, t):
    """{module: spec} of all quantized modules, by the rules of the loader."""
    out = {}
    for name in t:
        if not name.endswith(".scales"):
            continue
        module = name[:-7]
        s = spec_of(cfg, module)
        mode = s.get("mode", "affine" if module + ".biases" in t else cfg["quantization"]["mode"])
        out[module] = (s["bits"], s["group_size"], mode)
    return out


@pytest.mark.parametrize("case", list(CASES))
def test_folder_equals_mlx_lm(tmp_path, case, tokenizer_folder):
    import mlx_lm
    model_type, dtype, more, flags, kwargs = CASES[case]
    tiny_model(str(tmp_path / "src"), model_type, tokenizer_folder, dtype, **more)
    convert(tmp_path / "src", tmp_path / "ours", *flags)
    mlx_lm.convert(str(tmp_path / "src"), mlx_path=str(tmp_path / "theirs"), **kwargs)
    a, b = tensors(tmp_path / "ours"), tensors(tmp_path / "theirs")
    assert sorted(a) == sorted(b)
    different = [k for k in a if not same_bits(a[k], b[k])]
    assert not different
    assert effective(config(tmp_path / "ours"), a) == effective(config(tmp_path / "theirs"), b)
    model, _ = mlx_lm.load(str(tmp_path / "ours"))
    other, _ = mlx_lm.load(str(tmp_path / "theirs"))
    ids = mx.array([[1, 2, 3, 250]])
    assert same_bits(model(ids), other(ids))
    with open(tmp_path / "ours" / "model.safetensors.index.json", encoding="utf-8") as f:
        ours = json.load(f)
    with open(tmp_path / "theirs" / "model.safetensors.index.json", encoding="utf-8") as f:
        theirs = json.load(f)
    assert ours["metadata"] == theirs["metadata"]


def test_dequantize_equals_mlx_lm(tmp_path, tokenizer_folder):
    import mlx_lm
    tiny_model(str(tmp_path / "src"), "llama", tokenizer_folder, "bfloat16")
    convert(tmp_path / "src", tmp_path / "q", "-q")
    convert(tmp_path / "q", tmp_path / "ours", "-d")
    mlx_lm.convert(str(tmp_path / "q"), mlx_path=str(tmp_path / "theirs"), dequantize=True)
    a, b = tensors(tmp_path / "ours"), tensors(tmp_path / "theirs")
    assert sorted(a) == sorted(b) and all(same_bits(a[k], b[k]) for k in a)
    assert "quantization" not in config(tmp_path / "ours")


def test_quantized_source_again(tmp_path, tokenizer_folder):
    tiny_model(str(tmp_path / "src"), "llama", tokenizer_folder, "bfloat16")
    convert(tmp_path / "src", tmp_path / "q8", "-q", "--q-bits", "8")
    done = convert(tmp_path / "q8", tmp_path / "q4", "-q")
    assert "again" in done.stderr
    a, b = tensors(tmp_path / "q8"), tensors(tmp_path / "q4")
    m = "model.layers.1.mlp.up_proj"
    dense = mx.dequantize(a[m + ".weight"], a[m + ".scales"], a[m + ".biases"], group_size=64,
                          bits=8)
    want = mx.quantize(dense, group_size=64, bits=4)
    assert all(same_bits(b[m + n], x) for n, x in zip((".weight", ".scales", ".biases"), want))
    convert(tmp_path / "q8", tmp_path / "copy")
    c = tensors(tmp_path / "copy")
    assert a.keys() == c.keys() and all(same_bits(a[k], c[k]) for k in a)
    assert config(tmp_path / "copy")["quantization"] == config(tmp_path / "q8")["quantization"]


def test_raw_experts_are_stacked(tmp_path, tokenizer_folder):
    import mlx_lm
    cfg = tiny_model(str(tmp_path / "src"), "qwen3_moe", tokenizer_folder, "bfloat16", **MOE)
    t = tensors(tmp_path / "src")
    raw = {}
    for name, value in t.items():
        if ".switch_mlp." not in name:
            raw[name] = value
            continue
        for e in range(cfg["num_experts"]):
            raw[name.replace("switch_mlp", f"experts.{e}")] = value[e]
    mx.save_safetensors(str(tmp_path / "src" / "model.safetensors"), raw, metadata={"format": "pt"})
    convert(tmp_path / "src", tmp_path / "ours", "-q")
    mlx_lm.convert(str(tmp_path / "src"), mlx_path=str(tmp_path / "theirs"), quantize=True)
    a, b = tensors(tmp_path / "ours"), tensors(tmp_path / "theirs")
    assert sorted(a) == sorted(b) and all(same_bits(a[k], b[k]) for k in a)


@pytest.mark.parametrize("flags, kwargs", [([], {}), (["-q"], {"quantize": True})], ids=["plain", "q4"])
@pytest.mark.parametrize("family, case", [("deepseek_v3", "raw-f32"), ("glm4_moe", "base-f32"),
                                          ("deepseek_v2", "experts-f32"), ("llama4", "raw-f32")])
def test_raw_releases(tmp_path, tokenizer_folder, family, case, flags, kwargs):
    """As they are released: keys and values of all heads from one matrix, experts apart or turned, a layer too many, what
    only a model that sees uses."""
    import mlx_lm
    sys.path.insert(0, os.path.join(ROOT, "tests", "golden"))
    import synth
    with open(os.path.join(ROOT, "tests", "golden", "models", family + ".json"), encoding="utf-8") as f:
        recipe = next(c["recipe"] for c in json.load(f)["cases"] if c["name"] == case)
    if family == "glm4_moe":
        later = recipe["config"]["num_hidden_layers"]
        recipe["tensors"].append({**recipe["tensors"][0], "name": f"model.layers.{later}.eh_proj.weight"})
    for t in recipe["tensors"]:
        t["dtype"] = "bfloat16"
    synth.write(recipe, str(tmp_path / "src"))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(os.path.join(tokenizer_folder, name), tmp_path / "src")
    convert(tmp_path / "src", tmp_path / "ours", *flags)
    mlx_lm.convert(str(tmp_path / "src"), mlx_path=str(tmp_path / "theirs"), **kwargs)
    a, b = tensors(tmp_path / "ours"), tensors(tmp_path / "theirs")
    assert sorted(a) == sorted(b) and all(same_bits(a[k], b[k]) for k in a)
    assert family != "deepseek_v3" or "model.layers.0.self_attn.embed_q.weight" in a


@pytest.mark.parametrize("flags, word", [
    (["-q", "-d"], "dequantize"), (["-q", "--q-bits", "7"], "7"),
    (["-q", "--q-group-size", "48"], "48"), (["-q", "--quant-predicate", "mixed_9_9"], "mixed_9_9"),
    (["-q", "--q-mode", "mxfp4", "--quant-predicate", "mixed_3_4"], "mixed_3_4"),
    (["--dtype", "int8"], "int8"),
])
def test_refused_options(tmp_path, tokenizer_folder, flags, word):
    assert word in refuse(tokenizer_folder, tmp_path / "out", *flags)
    assert not (tmp_path / "out").exists()
