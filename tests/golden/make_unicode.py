"""Write src/text/unicode_data.inc: the general category of every code point, as the regular
expression engine inside Hugging Face's `tokenizers` knows it (its Unicode version, not ours).

Usage: python tests/golden/make_unicode.py > src/text/unicode_data.inc
"""
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

CATS = ("Cn Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp "
        "Cc Cf Co Cs").split()
BLOCK = 128


def every_char():
    return [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def members(pattern, text):
    """The code points that a one-character pattern matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return [ord(s) for s, _ in split.pre_tokenize_str(text)]


def categories():
    text = "".join(every_char())
    table = bytearray(0x110000)
    for i, cat in enumerate(CATS[1:], 1):
        if cat == "Cs":
            continue
        for c in members(r"\p{%s}" % cat, text):
            assert table[c] == 0, hex(c)
            table[c] = i
    table[0xD800:0xE000] = bytes([CATS.index("Cs")]) * 0x800
    return table


def ranges_since(table, version):
    """Runs of code points whose category differs from Python's own table, which must be `version`."""
    assert unicodedata.unidata_version == version, unicodedata.unidata_version
    runs = []
    for c in range(0x110000):
        if CATS[table[c]] == unicodedata.category(chr(c)):
            continue
        if runs and runs[-1][1] == c - 1:
            runs[-1][1] = c
        else:
            runs.append([c, c])
    return runs


def runs_of(points):
    runs = []
    for c in sorted(points):
        if runs and runs[-1][1] == c - 1:
            runs[-1][1] = c
        else:
            runs.append([c, c])
    return [v for r in runs for v in r]


def late_sets(table):
    """Characters newer than the Unicode versions inside the oracle's normalizers and splitters."""
    chars = every_char()
    strip, nfkd = normalizers.StripAccents(), normalizers.NFKD()
    bert = normalizers.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=True,
                                      lowercase=False)
    punct = pre_tokenizers.Punctuation("removed")
    normal, marks, late_punct = set(), set(), set()
    for ch in chars:
        c, cat = ord(ch), CATS[table[ord(ch)]]
        if cat[0] == "M" and strip.normalize_str(ch) != "":
            normal.add(c)
        if nfkd.normalize_str(ch) != unicodedata.normalize("NFKD", ch) or unicodedata.category(ch) != cat:
            normal.add(c)
        if cat == "Mn" and bert.normalize_str(ch) != "":
            marks.add(c)
        if cat[0] == "P" and punct.pre_tokenize_str(ch):
            late_punct.add(c)
    return normal, marks, late_punct


def emit(name, ctype, values, per_line):
    print(f"static const {ctype} {name}[{len(values)}] = {{")
    for i in range(0, len(values), per_line):
        print("    " + ",".join(str(v) for v in values[i:i + per_line]) + ",")
    print("};\n")


def main():
    table = categories()
    blocks, index = [], []
    for at in range(0, 0x110000, BLOCK):
        b = bytes(table[at:at + BLOCK])
        if b not in blocks:
            blocks.append(b)
        index.append(blocks.index(b))
    print("/* unicode_data.inc - general categories; generated, see unicode.h.")
    print(f" * Made by tests/golden/make_unicode.py with tokenizers {tokenizers.__version__}. Never edited")
    print(" * by hand.\n */")
    emit("cat_index", "uint16_t", index, 24)
    emit("cat_blocks", "uint8_t", [v for b in blocks for v in b], 32)
    print("/* Ranges whose category changed after Unicode 14 (first, last). */")
    runs = [v for r in ranges_since(table, "14.0.0") for v in r]
    emit("cat_since_14", "uint32_t", runs, 10)
    normal, marks, punct = late_sets(table)
    print("/* Ranges unknown to the oracle's normal forms, to its Bert accents and to its Punctuation. */")
    emit("late_normal", "uint32_t", runs_of(normal), 10)
    emit("late_bert_marks", "uint32_t", runs_of(marks), 10)
    emit("late_punct", "uint32_t", runs_of(punct), 10)


main()
