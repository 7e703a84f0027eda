"""Makes ops.safetensors: what mlx's CPU backend computes for every operation of compute/ops.h.

Run: MLX_DISABLE_COMPILE=1 python tests/golden/make_ops.py (pinned packages: tests/requirements.txt).
tests/unit/compute_ref_test.c compares the reference device with it, bit for bit.

A case is the tensors NAME.KEY for one NAME: inputs under the keys that the test reads for the
operation before the first dot of NAME, the result under `y`. Numbers of a case (width, eps, ...) are
in the metadata under NAME, separated by spaces. Types are those of the tensors. A tensor that equals
an earlier one is not stored again: the metadata names that one under NAME.KEY.
"""
import json
import os
import struct
import sys

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.activations import swiglu
from mlx_lm.models.gated_delta import compute_g, gated_delta_ops

TYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
NAMES = {v: k for k, v in TYPES.items()} | {mx.uint32: "U32", mx.uint8: "U8"}
VIEWS = {mx.float32: mx.uint32, mx.float16: mx.uint16, mx.bfloat16: mx.uint16}

rng = np.random.default_rng(11)
cases, numbers = {}, {}


def put(name, params=(), **tensors):
    assert name not in numbers, name
    numbers[name] = " ".join(repr(float(p)) for p in params)
    for key, a in tensors.items():
        if a is not None:
            cases[f"{name}.{key}"] = a


def floats(t, *shape, size=1.0):
    """Bells of a spread of sizes, with zeros of both signs, of type t."""
    x = rng.standard_normal(shape) * size * np.exp2(rng.integers(-3, 2, shape))
    kind = rng.integers(0, 24, shape)
    return mx.array(np.where(kind == 0, 0.0, np.where(kind == 1, -0.0, x)).astype(np.float32)).astype(t)


# ---- products ----

def dense():
    for n, k, wt in ((5, 1, "F32"), (19, 37, "F32"), (66, 130, "F32"), (19, 37, "BF16"), (19, 145, "BF16"),
                     (19, 37, "F16"), (66, 65, "F16")):
        w = floats(TYPES[wt], n, k, size=0.3)
        for xt in TYPES:
            if (n, wt) == (66, "F16") and xt == "BF16":
                continue
            x = floats(TYPES[xt], 3, k)
            put(f"dense.{wt}.{n}x{k}.{xt}", x=x, w=w, y=x @ w.T)
        for bt in dict.fromkeys((wt, "F32")):
            x, b = floats(TYPES[wt], 2, k), floats(TYPES[bt], n)
            put(f"dense.{wt}.{n}x{k}.bias{bt}", x=x, w=w, b=b, y=mx.addmm(b, x, w.T))


def quantized():
    modes = [("affine", b, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)]
    modes += [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]
    for i, (mode, b, g) in enumerate(modes):
        for j, wt in enumerate(TYPES):
            if mode != "affine" and wt != "F32":
                continue
            if b != 4 and j != i % 3:
                continue
            n, k = (9, 256 + g) if j == i % 3 else (7, 128)
            if (b, g) == (4, 64):
                n, k = 66, 64
            w = floats(TYPES[wt], n, k, size=0.3)
            q = mx.quantize(w, group_size=g, bits=b, mode=mode)
            parts = dict(zip(("w", "scales", "biases"), q))
            args = dict(group_size=g, bits=b, mode=mode)
            for xt in TYPES:
                if mode == "affine" and xt != wt and not (xt == "F32" and b in (3, 4)):
                    continue
                x = floats(TYPES[xt], 2, k)
                y = mx.quantized_matmul(x, *q, transpose=True, **args)
                put(f"qmm.{mode}.{b}.{g}.{wt}.{xt}", (b, g, k), x=x, y=y, **parts)
            if b == 4:
                x = floats(TYPES[wt], 1, k)
                bias = floats(TYPES["F32" if wt == "F16" else wt], n)
                y = mx.quantized_matmul(x, *q, transpose=True, **args) + bias
                put(f"qmm.{mode}.{b}.{g}.{wt}.bias", (b, g, k), x=x, b=bias, y=y, **parts)
            ids = mx.array([3, n - 1], dtype=mx.uint32)
            e = mx.dequantize(*[p[ids] for p in q], **args)
            put(f"embed.{mode}.{b}.{g}.{wt}", (b, g, k), ids=ids, y=e, **parts)
    w = floats(mx.bfloat16, 5, 12)
    ids = mx.array([4, 1], dtype=mx.uint32)
    put("embed.dense", ids=ids, w=w, y=w[ids])


def extreme_scales():
    """Scale bytes at the ends of the range, which a quantizer does not write."""
    for mode, b, g, bytes_ in (("mxfp4", 4, 32, (0, 1, 100, 254)), ("mxfp8", 8, 32, (0, 1, 130, 140)),
                               ("nvfp4", 4, 16, (0, 1, 0x7e, 0x80))):
        q = mx.array(rng.integers(0, 2 ** 32, (4, 4 * g * b // 32), dtype=np.uint32))
        if b == 8:
            q = q & 0x7d7d7d7d  # no NaN codes
        s = mx.array(np.array([bytes_] * 4, dtype=np.uint8))
        for xt in TYPES:
            x = floats(TYPES[xt], 1, 4 * g)
            y = mx.quantized_matmul(x, q, s, transpose=True, group_size=g, bits=b, mode=mode)
            put(f"qmm.{mode}.{b}.{g}.ends.{xt}", (b, g, 4 * g), x=x, w=q, scales=s, y=y)


# ---- norms, rotations ----

def norms():
    pairs = [(a, b) for a in TYPES for b in TYPES] + [(a, None) for a in TYPES]
    for xt, wt in pairs:
        x = floats(TYPES[xt], 2, 90)
        w = floats(TYPES[wt], 90) if wt else None
        put(f"rms_norm.{xt}.{wt}", (90, 1e-5), x=x, w=w, y=mx.fast.rms_norm(x, w, 1e-5))
        b = floats(TYPES[wt], 90) if wt else None
        put(f"layer_norm.{xt}.{wt}", (90, 1e-5), x=x, w=w, b=b, y=mx.fast.layer_norm(x, w, b, 1e-5))
    x, w = floats(mx.bfloat16, 3, 4 * 24), floats(mx.bfloat16, 24)
    y = mx.fast.rms_norm(x.reshape(3, 4, 24), w, 1e-6).reshape(3, 96)
    put("rms_norm.heads", (24, 1e-6), x=x, w=w, y=y)
    x, w = floats(mx.float16, 2, 40), floats(mx.float16, 40)
    put("layer_norm.no_bias", (40, 1e-5), x=x, w=w, y=mx.fast.layer_norm(x, w, None, 1e-5))


def rotate(x, heads, d, **kw):
    """x [T, heads*d] at positions offset, offset+1, ..."""
    y = mx.fast.rope(x.reshape(1, -1, heads, d).transpose(0, 2, 1, 3), **kw)
    return y.transpose(0, 2, 1, 3).reshape(x.shape)


def ropes():
    for t, traditional, dims, base, scale, offset in (
            ("F32", False, 32, 1e4, 1.0, 5), ("F32", True, 20, 5e5, 0.25, 0), ("BF16", False, 32, 1e6, 1.0, 4090),
            ("F16", True, 32, 1e4, 1.0, 100000), ("BF16", True, 16, 1e4, 0.125, 77), ("F16", False, 24, 1e5, 1.0, 1)):
        x = floats(TYPES[t], 3, 2 * 32)
        y = rotate(x, 2, 32, dims=dims, traditional=traditional, base=base, scale=scale, offset=offset)
        put(f"rope.{t}.{dims}.{int(traditional)}", (32, dims, traditional, base, scale, offset, 1.0), x=x, y=y)
    freqs = mx.array(np.append(np.exp2(np.arange(11) * 0.7), np.inf), dtype=mx.float32)
    for t in TYPES:
        x = floats(TYPES[t], 3, 2 * 32)
        scaled = x.reshape(3, 2, 32)
        scaled[..., :24] = 1.3 * scaled[..., :24]
        y = rotate(scaled.reshape(3, 64), 2, 32, dims=24, traditional=False, base=None, scale=1.0, offset=9,
                   freqs=freqs)
        put(f"rope.{t}.freqs", (32, 24, 0, 0, 1.0, 9, 1.3), x=x, freqs=freqs, y=y)


# ---- attention ----

def attention():
    for t in TYPES:
        for n, past, h, hk, d in ((1, 40, 4, 2, 16), (5, 0, 3, 3, 20), (3, 70, 4, 1, 8)):
            shape = lambda heads, rows: floats(TYPES[t], rows, heads * d)
            q, k, v = shape(h, n), shape(hk, past + n), shape(hk, past + n)
            s = floats(TYPES[t], h)
            split = lambda a, heads: a.reshape(1, -1, heads, d).transpose(0, 2, 1, 3)
            for kind, sinks in (("plain", None), ("sinks", s)):
                if kind == "sinks" and n == 5:
                    continue
                y = mx.fast.scaled_dot_product_attention(
                    split(q, h), split(k, hk), split(v, hk), scale=d ** -0.5,
                    mask="causal" if n > 1 else None, sinks=sinks)
                y = y.transpose(0, 2, 1, 3).reshape(n, h * d)
                put(f"attend.{kind}.{t}.{n}", (h, hk, d, past, 0, 0, d ** -0.5), q=q, k=k, v=v, sinks=sinks, y=y)
        window(t)
        capped(t)


def window(t):
    n, h, d, w = 30, 2, 8, 12
    q, k, v = (floats(TYPES[t], n, h * d) for _ in range(3))
    split = lambda a: a.reshape(1, n, h, d).transpose(0, 2, 1, 3)
    i = mx.arange(n)
    mask = (i[:, None] >= i[None]) & (i[:, None] < i[None] + w)
    y = mx.fast.scaled_dot_product_attention(split(q), split(k), split(v), scale=0.3, mask=mask)
    put(f"attend.window.{t}", (h, h, d, 0, w, 0, 0.3), q=q, k=k, v=v,
        y=y.transpose(0, 2, 1, 3).reshape(n, h * d))


def capped(t):
    """Softcapped scores, as mlx-lm's gemma2 computes them."""
    n, h, d, cap = 7, 2, 8, 2.0
    q, k, v = (floats(TYPES[t], n, h * d) for _ in range(3))
    split = lambda a: a.reshape(1, n, h, d).transpose(0, 2, 1, 3)
    i = mx.arange(n)
    scores = (split(q) * 0.5) @ split(k).swapaxes(-1, -2)
    scores = mx.tanh(scores / cap)
    scores *= cap
    scores = mx.where(i[:, None] >= i[None], scores, mx.finfo(scores.dtype).min)
    y = mx.softmax(scores, precise=True, axis=-1) @ split(v)
    put(f"attend.softcap.{t}", (h, h, d, 0, 0, cap, 0.5), q=q, k=k, v=v,
        y=y.transpose(0, 2, 1, 3).reshape(n, h * d))


# ---- elementwise ----

ACTS = (nn.silu, nn.gelu, nn.gelu_approx, nn.relu2, mx.sigmoid)


def spread(t):
    """Values around everything that the functions treat apart, and a coarse walk over all floats."""
    special = [0, -0.0, 1, -1, .5, -.5, 87, 88, 88.1, -88, -88.1, 90, 1e-40, -1e-40, 1e38, -1e38, np.inf, -np.inf]
    codes = (np.arange(200, dtype=np.uint64) * 21474837 % (1 << 32)).astype(np.uint32).view(np.float32)
    x = np.concatenate([special, codes[np.isfinite(codes)], rng.standard_normal(150) * 4])
    return mx.array(x.astype(np.float32)).astype(t).reshape(1, -1)


def elementwise():
    for t in TYPES:
        x = spread(TYPES[t])
        for i, act in enumerate(ACTS):
            put(f"act.{i}.{t}", (i,), x=x, y=act(x))
        put(f"softcap.{t}", (30.0,), x=x, y=mx.tanh(x / 30.0) * 30.0)
        put(f"scale.{t}", (0.22,), x=x, y=x * 0.22)
    x = floats(mx.bfloat16, 2, 24)
    put("head_part", (4, 1, 2), x=x, y=x.reshape(2, 3, 2, 4)[:, :, 1].reshape(2, 12))
    for a in TYPES:
        for b in TYPES:
            x, z = floats(TYPES[a], 2, 35), floats(TYPES[b], 2, 35)
            put(f"add.{a}.{b}", a=x, b=z, y=x + z)
            put(f"mul.{a}.{b}", a=x, b=z[:1], y=x * z[:1])
            put(f"accumulate.{a}.{b}", a=x, b=z, y=x + z)
            put(f"rows_mul.{a}.{b}", a=x, b=z[:, :1], y=x * z[:, :1])
            put(f"glu.{a}.{b}", (0,), a=x, b=z, y=swiglu(x, z))
            put(f"glu.gelu.{a}.{b}", (2,), a=x, b=z, y=nn.gelu_approx(x) * z)


# ---- experts ----

def experts():
    for t in TYPES:
        for n, k in ((8, 2), (60, 8), (5, 5)):
            x = floats(TYPES[t], 4, n)
            p = mx.softmax(x, axis=-1, precise=True)
            ids = mx.argpartition(p, kth=-k, axis=-1)[..., -k:]
            w = mx.take_along_axis(p, ids, axis=-1)
            put(f"route.all.{t}.{n}", (0, k, 0), x=x, ids=ids, y=w)
            put(f"route.norm.{t}.{n}", (0, k, 1), x=x, ids=ids, y=w / w.sum(axis=-1, keepdims=True))
            ids = mx.argpartition(x, kth=-k, axis=-1)[..., -k:]
            w = mx.softmax(mx.take_along_axis(x, ids, axis=-1), axis=-1, precise=True)
            put(f"route.top.{t}.{n}", (1, k, 0), x=x, ids=ids, y=w)
        for wt in (t, "F32"):
            y, w = floats(TYPES[t], 2 * 4, 37), floats(TYPES[wt], 2, 4)
            if f"combine.{t}.{wt}" not in numbers:
                z = (y.reshape(2, 4, 37) * w[..., None]).sum(axis=-2).astype(y.dtype)
                put(f"combine.{t}.{wt}", h=y, w=w, y=z)
    expert_products()


def expert_products():
    ids = mx.array([[2, 0], [1, 2], [3, 3]], dtype=mx.uint32)
    forms = [("affine", 4, 32, "BF16"), ("affine", 3, 32, "F32"),
             ("mxfp4", 4, 32, "BF16"), (None, 0, 0, "F32")]
    for mode, b, g, t in forms:
        w = floats(TYPES[t], 4, 9, 64, size=0.3)
        parts, numbers_ = {"w": w}, ()
        args = dict(group_size=g, bits=b, mode=mode)
        if mode:
            q = mx.quantize(w, **args)
            parts, numbers_ = dict(zip(("w", "scales", "biases"), q)), (b, g, 64)
        for rows in (3, 6):
            x = floats(TYPES[t], rows, 64)
            lhs = x.reshape(3, -1, 1, 64)
            idx = ids
            if mode:
                y = mx.gather_qmm(lhs, *q, rhs_indices=idx, transpose=True, **args)
            else:
                y = mx.gather_mm(lhs, w.swapaxes(-1, -2), rhs_indices=idx)
            y = y.reshape(6, 9)
            bias = floats(TYPES[t], 4, 9) if rows == 6 else None
            if bias is not None:
                y = y + bias[idx].reshape(6, 9)
            put(f"expert.{mode}.{b}.{t}.{rows}", numbers_, x=x, ids=idx, b=bias, y=y, **parts)


# ---- recurrent layers ----

def recurrent():
    for t in TYPES:
        for wt in dict.fromkeys((t, "F32")):
            x, w = floats(TYPES[t], 7, 13), floats(TYPES[wt], 13, 4)
            before = mx.concatenate([mx.zeros((3, 13), dtype=TYPES[t]), x])[None]
            y = nn.silu(mx.conv1d(before, w[..., None], groups=13))[0]
            put(f"conv.{t}.{wt}", x=x, w=w, y=y)
            a, log, bias = floats(TYPES[t], 3, 9), floats(mx.float32, 9), floats(TYPES[wt], 9)
            put(f"decay.{t}.{wt}", a=a, log=log, bias=bias, y=compute_g(log, a, bias))
        q, k = floats(TYPES[t], 6, 2 * 16, size=0.4), floats(TYPES[t], 6, 2 * 16, size=0.4)
        v, g = floats(TYPES[t], 6, 4 * 12), mx.sigmoid(floats(mx.float32, 6, 4))
        beta = mx.sigmoid(floats(TYPES[t], 6, 4))
        y, _ = gated_delta_ops(q.reshape(1, 6, 2, 16), k.reshape(1, 6, 2, 16), v.reshape(1, 6, 4, 12), g[None],
                               beta[None])
        put(f"delta.{t}", (4, 12, 16), q=q, k=k, v=v, g=g, beta=beta, y=y.reshape(6, 48))


# ---- llama4: a router whose weights are for inputs, queries that grow with the position ----

def llama4():
    for t in TYPES:
        for n in (8, 60):
            x = floats(TYPES[t], 4, n)
            ids = mx.argpartition(-x, kth=0, axis=-1)[..., :1]
            y = mx.sigmoid(mx.take_along_axis(x, ids, axis=-1).astype(mx.float32))
            put(f"route.input.{t}.{n}", (4, 1, 0), x=x, ids=ids, y=y)
        for past, step, rate in ((0, 4, 0.1), (8189, 8192, 0.1), (1000003, 8192, 0.25)):
            x = floats(TYPES[t], 7, 40)
            by = mx.log(mx.floor(mx.arange(past + 1, past + 8) / step) + 1.0) * rate + 1.0
            put(f"pos_scale.{t}.{past}", (past, step, rate), x=x, y=(x * by[:, None]).astype(x.dtype))


# ---- files ----

def raw(a):
    return np.array(a.view(VIEWS[a.dtype]) if a.dtype in VIEWS else a)


def write(path, metadata):
    """Sorted by name, so that the same numbers give the same file."""
    header, at, blobs, seen = {"__metadata__": metadata}, 0, [], {}
    for name in sorted(cases):
        a = np.ascontiguousarray(raw(cases[name]))
        dtype = NAMES[cases[name].dtype]
        first = seen.setdefault((dtype, a.shape, a.tobytes()), name)
        if first != name and not name.endswith(".y"):  # results stand for their cases
            metadata[name] = first
            continue
        header[name] = {"dtype": dtype, "shape": list(a.shape),
                        "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
        blobs.append(a.tobytes())
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))


if __name__ == "__main__":
    if os.environ.get("MLX_DISABLE_COMPILE") != "1":
        sys.exit("set MLX_DISABLE_COMPILE=1: the reference is uncompiled mlx")
    mx.set_default_device(mx.cpu)
    for make in (dense, quantized, extreme_scales, norms, ropes, attention, elementwise, experts, recurrent, llama4):
        make()
    here = os.path.dirname(os.path.abspath(__file__))
    write(os.path.join(here, "ops.safetensors"),
          {"mlx": mx.__version__, "command": "MLX_DISABLE_COMPILE=1 python tests/golden/make_ops.py", **numbers})
