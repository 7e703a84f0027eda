"""Makes quant.safetensors: what mlx's CPU backend computes when it converts, quantizes and
dequantizes. Run: python tests/golden/make_quant.py (pinned packages: tests/requirements.txt).

Tensors: in.DTYPE [8, 128]; for every case MODE.bBITS.gGROUP.DTYPE: .words .scales .biases and
.out (the dequantized bits; not for every float32 group size, to keep the file small).
Metadata: the mlx version, and SHA-256 digests of conversions over whole ranges.
"""
import hashlib
import json
import os
import struct

import mlx.core as mx
import numpy as np

K = 128
DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}
CASES = [("affine", b, g) for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)]
CASES += [("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)]


def raw(a):
    """The bits of an mlx array as numpy."""
    views = {mx.float32: mx.uint32, mx.float16: mx.uint16, mx.bfloat16: mx.uint16}
    return np.array(a.view(views[a.dtype]) if a.dtype in views else a)


def inputs():
    rng = np.random.default_rng(7)
    k = np.arange(K)
    degenerate = np.select([k < 32, k < 64, k < 96], [0.0, 0.7, -0.7], np.where(k == 100, 5.0, 0.0))
    ties = (k % 16 % 8) * 0.5 + 0.25
    ties = np.where(k % 16 == 0, 6.0, np.where(k % 16 < 8, ties, -ties))
    return np.array([
        rng.standard_normal(K),
        rng.standard_normal(K) * 1e-3,
        degenerate,
        np.where(k % 2, 1.5, -1.5) * (k % 7 > 2),       # |min| = |max|
        ties,                                           # halfway between fp4 values
        rng.integers(-9, 10, K) * 2.0 ** -131,          # subnormal in bf16
        np.abs(rng.standard_normal(K)) * 1e4,
        rng.integers(-9, 10, K) * 2.0 ** -22,           # subnormal in f16
    ]).astype(np.float32)


def tensors():
    out = {}
    for name, dtype in DTYPES.items():
        w = mx.array(inputs()).astype(dtype)
        out["in." + name] = (name, raw(w))
        for mode, bits, group in CASES:
            q = mx.quantize(w, group_size=group, bits=bits, mode=mode)
            y = mx.dequantize(*q, group_size=group, bits=bits, mode=mode)
            key = f"{mode}.b{bits}.g{group}.{name}"
            out[key + ".words"] = ("U32", raw(q[0]))
            out[key + ".scales"] = (name if mode == "affine" else "U8", raw(q[1]))
            if mode == "affine":
                out[key + ".biases"] = (name, raw(q[2]))
            if y.dtype != mx.float32 or group == 64:
                out[key + ".out"] = ("F32" if y.dtype == mx.float32 else
                                     "F16" if y.dtype == mx.float16 else "BF16", raw(y))
    return out


def digest(a):
    return hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()


def digests():
    codes = mx.array(np.arange(65536, dtype=np.uint16))
    floats = (np.arange(1 << 20, dtype=np.uint64) * 4099 % (1 << 32)).astype(np.uint32)
    x = mx.array(floats).view(mx.float32)
    return {
        "f16_to_f32": digest(raw(codes.view(mx.float16).astype(mx.float32))),
        "bf16_to_f32": digest(raw(codes.view(mx.bfloat16).astype(mx.float32))),
        "f32_to_f16": digest(raw(x.astype(mx.float16))),
        "f32_to_bf16": digest(raw(x.astype(mx.bfloat16))),
        "f32_to_e4m3": digest(np.array(mx.to_fp8(x))),
        "e4m3_to_f32": digest(raw(mx.from_fp8(mx.array(np.arange(256, dtype=np.uint8)),
                                              dtype=mx.float32))),
    }


def write(path, arrays, metadata):
    """Sorted by name, so that the same numbers give the same file."""
    header, at = {"__metadata__": metadata}, 0
    for name in sorted(arrays):
        dtype, a = arrays[name]
        header[name] = {"dtype": dtype, "shape": list(a.shape), "data_offsets": [at, at + a.nbytes]}
        at += a.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for name in sorted(arrays):
            f.write(np.ascontiguousarray(arrays[name][1]).tobytes())


if __name__ == "__main__":
    mx.set_default_device(mx.cpu)
    here = os.path.dirname(os.path.abspath(__file__))
    write(os.path.join(here, "quant.safetensors"), tensors(),
          {"mlx": mx.__version__, "command": "python tests/golden/make_quant.py", **digests()})
