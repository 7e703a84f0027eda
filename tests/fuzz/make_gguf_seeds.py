"""Write the seeds of format_gguf_fuzz: small GGUF files, good and lying. Needs no package."""
import os
import struct

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "seeds", "format_gguf")


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def key(name, kind, value):
    return text(name) + struct.pack("<I", kind) + value


def record(name, dims, kind, offset):
    dims = dims[::-1]
    return (text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
            + struct.pack("<IQ", kind, offset))


def build(keys=(), records=(), data=b"", version=3, align=32, n_keys=None, n_tensors=None):
    head = b"GGUF" + struct.pack("<IQQ", version, len(records) if n_tensors is None else n_tensors,
                                 len(keys) if n_keys is None else n_keys)
    head += b"".join(keys) + b"".join(records)
    return head + b"\0" * (-len(head) % align) + data


def array(kind, n, raw):
    return struct.pack("<IQ", kind, n) + raw


BLOCKS = {0: 4, 1: 2, 2: 18, 3: 20, 6: 22, 7: 24, 8: 34, 10: 84, 11: 110, 12: 144, 13: 176, 14: 210,
          20: 18, 30: 2, 39: 17}
ITEMS = {0: 1, 1: 1, 30: 1, 10: 256, 11: 256, 12: 256, 13: 256, 14: 256}


def every_type():
    records, data = [], b""
    for kind, size in BLOCKS.items():
        data += b"\0" * (-len(data) % 32)
        records.append(record(f"t{kind}", [1, ITEMS.get(kind, 32)], kind, len(data)))
        data += bytes((7 * i + kind) % 256 for i in range(size))
    return build(records=records, data=data)


SEEDS = {
    "empty": build(),
    "keys": build([key("general.architecture", 8, text("llama")), key("a", 4, struct.pack("<I", 7)),
                   key("b", 6, struct.pack("<f", 1.5)),
                   key("tokenizer.ggml.tokens", 9, array(8, 2, text("x") + text("yz"))),
                   key("tokenizer.ggml.scores", 9, array(6, 2, struct.pack("<2f", 0, -1)))]),
    "types": every_type(),
    "v2": build(records=[record("t", [32], 0, 0)], data=bytes(128), version=2),
    "align64": build([key("general.alignment", 4, struct.pack("<I", 64))],
                     [record("t", [2, 16], 1, 0)], bytes(64), align=64),
    "huge_counts": build(n_keys=2**63, n_tensors=2**63),
    "huge_shape": build(records=[record("t", [2**40, 2**40], 2, 0)]),
    "huge_array": build([key("a", 9, array(8, 2**40, b""))]),
    "outside": build(records=[record("t", [64], 0, 1 << 40)], data=bytes(128)),
    "split": build([key("split.count", 2, struct.pack("<H", 3))]),
}

os.makedirs(HERE, exist_ok=True)
for name, content in SEEDS.items():
    with open(os.path.join(HERE, name), "wb") as f:
        f.write(content)
