"""Probes of the installed mlx: is it the build whose bits the reference device reproduces?

Run: MLX_DISABLE_COMPILE=1 python tests/golden/probe.py [--json]
Prints the build's facts, then one line a probe; the exit status is 1 if a probe differs from the
contract (docs/numerics.md), and then every golden made by this mlx is worthless.
"""
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
from importlib import metadata

import mlx.core as mx
import numpy as np

BITS = {mx.float32: mx.uint32, mx.bfloat16: mx.uint16, mx.float16: mx.uint16}


def bits(a):
    """Hexadecimal words of an array's elements, separated by spaces."""
    a = mx.array(a)
    width = 8 if a.dtype == mx.float32 else 4
    return " ".join(f"{int(v):0{width}x}" for v in np.array(a.view(BITS[a.dtype])).reshape(-1))


def f32(*v):
    return mx.array(list(v), dtype=mx.float32)


def number(a):
    return repr(float(np.float32(a.astype(mx.float32).item())))


def words(a):
    return " ".join(f"{int(v):08x}" for v in np.array(a).reshape(-1))


# ---- how sums are made ----

def qmm_sum():
    ones = mx.ones((1, 512), dtype=mx.bfloat16)
    q = mx.quantize(ones, group_size=64, bits=4)
    return number(mx.quantized_matmul(ones, *q, group_size=64, bits=4))


def no_fma():
    a = 1 + 2.0 ** -12
    return number(f32(1, a).reshape(1, 2) @ f32(-(1 + 2.0 ** -11), a).reshape(2, 1))


def one_accumulator():
    x = f32(2.0 ** 24, *[1] * 14, -2.0 ** 24)
    return number(x.reshape(1, 16) @ mx.ones((16, 1)))


def plain_order():
    x = mx.array([256] + [1] * 14 + [-256], dtype=mx.bfloat16)
    w = mx.array([65536] + [1] * 14 + [65536], dtype=mx.bfloat16)
    return number(x.reshape(1, 16) @ w.reshape(16, 1))


def compile_off():
    return bits(mx.compile(lambda x: (x * 2 ** 0.5) * x)(f32(1.0)))


def sum_once():
    """1000 ones: 256 where the sum is kept in bfloat16, else 1000. The last is a running sum."""
    x = mx.ones((2, 1000), dtype=mx.bfloat16)
    sums = (x.sum(axis=-1)[0], x.T.sum(axis=0)[0], mx.mean(x), mx.cumsum(x, axis=-1)[0, -1])
    return " ".join(number(v) for v in sums)


def softmax_precise():
    x = mx.zeros((1, 1000), dtype=mx.bfloat16)
    return bits(mx.softmax(x, axis=-1)[0, 0]) + " " + bits(mx.softmax(x, axis=-1, precise=True)[0, 0])


# ---- functions ----

def exp():
    return bits(mx.exp(f32(1, -.5, -10, -87.6, -88)))


def sin_cos():
    x = f32(1, 1000.5)
    return bits(mx.sin(x)) + " " + bits(mx.cos(x))


def sin_huge():
    x = f32(1e7)
    libm = np.array([math.sin(1e7), math.cos(1e7)]).astype(np.float32)
    return bits(mx.sin(x)) + " " + bits(mx.cos(x)) if (
        mx.sin(x).item(), mx.cos(x).item()) == tuple(libm.tolist()) else "not libm's"


def erf_sigmoid():
    return " ".join([bits(mx.erf(f32(.5, 0))), bits(mx.sigmoid(f32(1, -1))),
                     bits(mx.logaddexp(f32(1), f32(0)))])


def bf16_unary():
    x = mx.array([1.5], dtype=mx.bfloat16)
    return " ".join(bits(v) for v in (mx.sigmoid(x), x * mx.sigmoid(x), mx.exp(x)))


def rope():
    x = mx.zeros((1, 1, 1, 128))
    x[..., :64] = 1.0
    y = mx.fast.rope(x, 128, traditional=False, base=1e4, scale=1.0, offset=5)[0, 0, 0]
    return " ".join(bits(y[i]) + "/" + bits(y[i + 64]) for i in (0, 1, 31))


# ---- quantization ----

def ramp(b):
    w = mx.array([(i - 11) / 4 for i in range(32)], dtype=mx.float32).reshape(1, 32)
    q, s, z = mx.quantize(w, group_size=32, bits=b)
    text = words(q) if b == 4 else np.array(q).tobytes().hex()
    return f"{number(s)} {number(z)} {text}"


def flat_groups():
    out = []
    for c in (0.0, 0.7, -0.7):
        q, s, z = mx.quantize(mx.full((1, 64), c, dtype=mx.float32), group_size=64, bits=4)
        out += [bits(s), bits(z), str(int(mx.abs(q.astype(mx.int32)).sum()))]
    return " ".join(out)


def bf16_quant():
    w = mx.array([((37 * i) % 64 - 31) / 32 for i in range(64)], dtype=mx.bfloat16).reshape(1, 64)
    x = mx.array([((11 * i) % 17 - 8) / 8 for i in range(64)], dtype=mx.bfloat16).reshape(1, 64)
    q, s, z = mx.quantize(w, group_size=64, bits=4)
    y = mx.quantized_matmul(x, q, s, z, group_size=64, bits=4)
    return f"{bits(s)} {bits(z)} {words(q)} {bits(y)}"


def e4m3_nan():
    y = mx.from_fp8(mx.array([0x7e, 0x7f], dtype=mx.uint8), dtype=mx.float32)
    return " ".join(str(v) for v in y.tolist())


def mxfp_scale():
    """Largest magnitude 5.5: 5.5/6 has the logarithm -0.13; nearest is 2^0, as is rounding up. 8.2: 2^1 up."""
    out = []
    for top in (5.5, 8.2):
        w = mx.zeros((1, 32), dtype=mx.float32)
        w[0, 3] = top
        out.append(str(int(mx.quantize(w, group_size=32, bits=4, mode="mxfp4")[1].item())))
    return " ".join(out)


# ---- random numbers and order ----

def random_bits():
    state = np.array(mx.random.split(mx.random.key(0))).reshape(-1)
    five = mx.random.uniform(shape=[5], key=mx.random.key(0))
    words32 = [2467461003, 428148500, 1688610540, 3840466878, 2562233961]
    same = np.array_equal(np.array(five),
                          np.array(words32, dtype=np.uint32).astype(np.float32) / np.float32(2 ** 32))
    return " ".join(str(int(v)) for v in state) + (" equal" if same else " differ")


def uniforms():
    mx.random.seed(0)
    return " ".join(bits(mx.random.uniform()) for _ in range(3))


def draws():
    out = []
    for seed in (0, 42):
        mx.random.seed(seed)
        out += [str(mx.random.categorical(f32(0, 1, 2, 3).reshape(1, 4)).item()) for _ in range(10)]
    return " ".join(out)


def partition():
    v = mx.array([(7 * i) % 16 / 16 for i in range(16)], dtype=mx.float32)
    w = mx.array([(37 * i) % 128 / 128 for i in range(128)], dtype=mx.float32)
    parts = [mx.argpartition(v, kth=-4)[-4:], mx.argpartition(v, kth=3)[:4],
             mx.argpartition(w, kth=-8)[-8:], mx.argpartition(w, kth=7)[:8],
             mx.argpartition(mx.ones(64), kth=-6)[-6:]]
    return "; ".join(" ".join(str(i) for i in p.tolist()) for p in parts)


PROBES = [  # name, function, contract, what another value would mean
    ("qmm sums in the activations' type", qmm_sum, "256.0", "512: sums in float32"),
    ("no FMA in float32 products", no_fma, "0.0", "2^-24: FMA"),
    ("one accumulator in float32 products", one_accumulator, "0.0", "several accumulators"),
    ("16-bit products in plain order", plain_order, "0.0", "another order"),
    ("compile is off", compile_off, "3fb504f3", "3fb504f7: set MLX_DISABLE_COMPILE=1"),
    ("16-bit sums round once, running sums each time", sum_once, "1000.0 1000.0 1.0 256.0",
     "256 first: sums in the elements' type, before 0.32.4"),
    ("softmax in bfloat16, plain and precise", softmax_precise, "3b80 3a83", ""),
    ("exp", exp, "402df854 3f1b4598 383e6bce 00625abf 00000000", ""),
    ("sin and cos", sin_cos, "3f576aa4 3f7eca46 3f0a5140 3dc6dffc", ""),
    ("sin and cos above 2^23 are libm's", sin_huge, "3ed7520a bf6842df", "no large-argument branch"),
    ("erf, sigmoid, logaddexp", erf_sigmoid, "3f053f7f 80000000 3f3b26a8 3e89b2b1 3fa818f6", ""),
    ("bfloat16 sigmoid, silu, exp", bf16_unary, "3f51 3f9d 408f", ""),
    ("rope", rope, "3e913c2b/bf757c10 bebf21a3/bf6d7e5b 3f7f92ca/3d6c5e31", ""),
    ("quantize 4 bits", lambda: ramp(4), "-0.5 5.0 ccdeeeff 889aaabc 44566678 00122234", ""),
    ("quantize 3 bits", lambda: ramp(3), "-1.0 5.0 ff7fdb765b92e43649521200", ""),
    ("quantize 5 bits", lambda: ramp(5), "-0.25 5.0 df77be75c6d7563a6584cf35b65442c714324400", ""),
    ("quantize 6 bits", lambda: ramp(6),
     "-0.12195122241973877 5.0 bfbfe7773dc76fbba66739865fb7651725410ea320062100", ""),
    ("quantize constant groups", flat_groups,
     "b3d6bf95 00000000 0 b3d6bf95 3f333333 0 b3d6bf95 bf333333 0", ""),
    ("quantize and multiply bfloat16", bf16_quant,
     "be00 3f80 f82b4d6f 5e81a3c6 b4e7092c 1a4d6f82 70a3c5e8 d6f92b4e 3c6f81a4 92c5e70a bd00", ""),
    ("E4M3 code 0x7f is NaN", e4m3_nan, "448.0 nan", "448 480: before 0.32.4"),
    ("mxfp scales round up", mxfp_scale, "127 128", "127 127: before 0.32.4, to nearest"),
    ("random bits", random_bits, "4146024105 967050713 2718843009 1272950319 equal", ""),
    ("uniforms", uniforms, "3dd7cbb9 3e8eb448 3f2fcac4", ""),
    ("draws by the inverse distribution", draws, "1 2 3 3 2 3 3 2 2 0 3 3 0 3 3 0 2 3 3 3",
     "3 2 3 3 2...: Gumbel, before 0.32.1"),
    ("argpartition", partition, "4 11 2 9; 14 0 7 5; 24 114 69 83 38 121 76 31; "
     "90 0 45 14 97 52 7 59; 58 59 60 61 62 63", ""),
]


def library_facts():
    """Names and hashes of the libraries that the wheel brings."""
    out = {}
    for dist in ("mlx", "mlx-cpu"):
        for f in metadata.files(dist) or []:
            if ".so" in f.name:
                data = f.locate().read_bytes()
                out[f.name] = hashlib.sha256(data).hexdigest()[:16]
    return out


def libc():
    try:
        text = subprocess.run(["ldd", "--version"], capture_output=True, text=True).stdout
        return text.splitlines()[0]
    except OSError:
        return " ".join(platform.libc_ver())


def facts():
    return {
        "machine": platform.machine(), "mlx": mx.__version__,
        "mlx-lm": metadata.version("mlx-lm"), "libc": libc(),
        "MLX_DISABLE_COMPILE": os.environ.get("MLX_DISABLE_COMPILE", ""),
        "libraries": library_facts(),
    }


def main():
    mx.set_default_device(mx.cpu)
    results, failed = {}, 0
    for name, fn, want, other in PROBES:
        got = fn()
        ok = got == want
        failed += not ok
        results[name] = got
        if "--json" not in sys.argv:
            print(("ok    " if ok else "DIFFERS ") + name +
                  ("" if ok else f"\n    got  {got}\n    want {want}\n    ({other})"))
    if "--json" in sys.argv:
        print(json.dumps({"facts": facts(), "probes": results}, indent=1))
    else:
        print(json.dumps(facts(), indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
