"""Make the small tokenizers of tests/unit/data and what Hugging Face's `tokenizers` does with them.

Usage: python tests/golden/make_tokenizer.py [OUTDIR]     (default: tests/unit/data)

For every name it writes tok_NAME.json (a tokenizer.json trained on the texts below) and
tok_NAME_golden.json: a list of {text, ids, special_ids, plain_ids, decoded, skipped}. Running it
again with the same version of `tokenizers` reproduces the files.
"""
import json
import os
import struct
import sys

import tokenizers
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

TRAIN = [
    "the quick brown fox jumps over the lazy dog. the dog doesn't care; they've seen it all.",
    "int main(int argc, char **argv)\n{\n    return argc > 1 ? 0 : 1;\n}\n",
    "for i in range(100):\n    print(i, i * i)\n\n\nif x == 42:\n\tpass\n",
    "日本語のテキスト。漢字とかな。",
    "नमस्ते दुनिया, यह एक परीक्षण है।",
    "l'été à Paris, où l'on déjeune; Ärger über Öl.",
    "1234567890 3.14159 2024-01-02 0x1F",
    "Hello World! HELLO world's World'S I'll I'LL",
] * 4

TEXTS = [
    "", " ", "  ", "a", " a", "the quick brown fox", "Hello World's  HELLO'LL", "don't DON'T ſ'ſ",
    "x = 1234567;\r\n\r\n\tif (x)  \n   y", "日本語と漢字。", "नमस्ते क्षत्रिय", "e\u0301 a\u0323\u0308 \u212b \uac00\u11a8",
    "👩‍👩‍👧 🏳️‍🌈 👍🏽", "\u00a0x\u3000y\u0085z\u180e", "½²Ⅷ١٢٣", "<|im_start|>user\nhi<|im_end|>\n", "<|im_start|> <|im_end|>x",
    "a<sp> b  <sp>c<word>d <word> e", "<norm>É <NORM> é", "\x00\x01\x7f", "▁x ▁▁ y", "Ġa", "<0x41><s>", "    " * 20,
    "9" * 50, "ab" * 60, "\n" * 9, "zzz\u4e00\U00031350\u0e01", "!?.,;:'\"()[]{}", " \t\n\r ", "naïve café", "\U0001e03aж \U00010797\u0308", "\ufe78e",
]

ADDED = [
    AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True),
    AddedToken("<sp>", lstrip=True, rstrip=True, special=False, normalized=False),
    AddedToken("<word>", single_word=True, special=False, normalized=False),
    AddedToken("<norm>", special=False, normalized=True),
]

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def trained(model, trainer, normalizer=None, pre=None, decoder=None, post=None):
    t = Tokenizer(model)
    if normalizer:
        t.normalizer = normalizer
    if pre:
        t.pre_tokenizer = pre
    t.train_from_iterator(TRAIN, trainer)
    if decoder:
        t.decoder = decoder
    t.add_tokens(ADDED)
    if post:
        t.post_processor = post(t)
    return t


def bpe_trainer(size=600, **kw):
    return trainers.BpeTrainer(vocab_size=size, show_progress=False, **kw)


def byte_level(pre, normalizer=None, post=None):
    return trained(models.BPE(), bpe_trainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet()), normalizer, pre,
                   decoders.ByteLevel(), post)


def smollm():
    return byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)]))


def llama3():
    pre = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
                                   pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    bos = lambda t: processors.Sequence([processors.ByteLevel(), processors.TemplateProcessing(
        "<|im_start|> $A", special_tokens=[("<|im_start|>", t.token_to_id("<|im_start|>"))])])
    t = byte_level(pre, None, bos)
    j = json.loads(t.to_str())
    j["model"]["ignore_merges"] = True
    return Tokenizer.from_str(json.dumps(j))


def qwen2():
    pattern = LLAMA3.replace("{1,3}", "")
    return byte_level(pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
                      normalizers.NFC())


def gpt2_prefix():
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True))


def spm(normalizer, decoder_end, pre=None):
    chars = ["▁"] + ["<0x%02X>" % b for b in range(256)]
    t = trained(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True),
                bpe_trainer(700, special_tokens=["<unk>", "<s>"] + chars[1:], initial_alphabet=["▁"]), normalizer, pre,
                decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()] + decoder_end),
                lambda t: processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 1)]))
    # The trainer marks the byte tokens as added; here they belong to the vocabulary only.
    j = json.loads(t.to_str())
    j["added_tokens"] = [a for a in j["added_tokens"] if not a["content"].startswith("<0x")]
    return Tokenizer.from_str(json.dumps(j))


def llama2():
    return spm(normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
               [decoders.Strip(" ", 1, 0)])


def gemma():
    return spm(normalizers.Replace(" ", "▁"), [], pre_tokenizers.Split(" ", "merged_with_previous"))


def counted(n_max, n_keep, prefix=""):
    """The most frequent character n-grams of the training words, most frequent first."""
    counts = {}
    for line in TRAIN:
        for word in line.split():
            word = prefix + word.lower()
            for n in range(1, n_max + 1):
                for i in range(len(word) - n + 1):
                    counts[word[i:i + n]] = counts.get(word[i:i + n], 0) + 1
    return sorted(counts.items(), key=lambda kv: (-kv[1], kv[0]))[:n_keep]


def assembled(model, normalizer, pre, decoder, post=None):
    """A tokenizer with a vocabulary made here: the trainers of these models are not reproducible."""
    t = Tokenizer(model)
    t.normalizer, t.pre_tokenizer, t.decoder = normalizer, pre, decoder
    t.add_tokens(ADDED)
    if post:
        t.post_processor = post
    return t


def metaspace():
    rows = [("<unk>", 0.0), ("</s>", 0.0)] + [(s, -1.0 - 0.0625 * i) for i, (s, _) in enumerate(counted(4, 300, "▁"))]
    return assembled(models.Unigram(rows, 0, False),
                     normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "),
                                           normalizers.Strip()]),
                     pre_tokenizers.Metaspace(prepend_scheme="first"), decoders.Metaspace(prepend_scheme="first"),
                     processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 1)]))


def wordpiece():
    tokens = ["[UNK]", "[CLS]", "[SEP]"]
    for s, _ in counted(4, 200):
        tokens += [s, "##" + s]
    return assembled(models.WordPiece({s: i for i, s in enumerate(tokens)}, unk_token="[UNK]"),
                     normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece(),
                     processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1)))


def clip():
    """Merges that build the most frequent n-grams from the left, each inside and at the end of words."""
    chars = sorted({s for s, _ in counted(1, 500)})
    vocab, merges = ["<unk>"] + chars + [c + "</w>" for c in chars], []
    for s, _ in sorted(counted(4, 200), key=lambda kv: (len(kv[0]), -kv[1], kv[0])):
        if len(s) > 1 and s[:-1] in vocab:
            vocab += [s, s + "</w>"]
            merges += [(s[:-1], s[-1]), (s[:-1], s[-1] + "</w>")]
    return assembled(models.BPE({s: i for i, s in enumerate(vocab)}, merges, unk_token="<unk>", end_of_word_suffix="</w>"),
                     normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase()]),
                     pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("contiguous")]),
                     decoders.BPEDecoder("</w>"))


def double_array(mapping):
    """A SentencePiece character map as bytes: see src/text/tok_charsmap.c for the layout."""
    out, root = b"", {}
    for key, value in mapping.items():
        node = root
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[0] = len(out)
        out += value.encode() + b"\0"
    units = [0] * 1024
    used = {0}

    def place(node, pos, label):
        base = next(b for b in range(1, len(units)) if not used & {b ^ c for c in node})
        used.update(base ^ c for c in node)
        units[pos] = label | (pos ^ base) << 10 | (0 in node) << 8
        for c, child in node.items():
            if c:
                place(child, base ^ c, c)
            else:
                units[base] = child | 1 << 31

    place(root, 0, 0)
    return struct.pack("<I1024I", 4096, *units) + out


def charsmap():
    """Precompiled: shortest match in short clusters, else each character."""
    rules = {"\uff21": "A", "\ufb01": "fi", "e\u0301": "\u00e9", "o": "0", "\r": " ", "\u3000": " ", "\u00bd": "1/2",
             "\u30a2": "\u3042", "\u0600": "", "\u200b": "", "a\u0323\u0308": "long", "\u0928": "n"}
    rows = [("<unk>", 0.0)] + [("<0x%02X>" % b, -20.0) for b in range(256)]
    rows += [(s, -1.0 - 0.0625 * i) for i, (s, _) in enumerate(counted(4, 300, "\u2581"))]
    return assembled(models.Unigram(rows, 0, True),
                     normalizers.Sequence([normalizers.Precompiled(double_array(rules)), normalizers.Lowercase()]),
                     pre_tokenizers.Metaspace(prepend_scheme="always"),
                     decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always")]))


def scripts():
    vocab = {s: i for i, s in enumerate(["<unk>", "|", "<pad>"] + [s for s, _ in counted(3, 300)])}
    return assembled(models.WordLevel(vocab, unk_token="<unk>"), normalizers.Nmt(),
                     pre_tokenizers.Sequence([pre_tokenizers.UnicodeScripts(), pre_tokenizers.FixedLength(3)]),
                     decoders.CTC())


MAKERS = [smollm, llama3, qwen2, gpt2_prefix, llama2, gemma, metaspace, wordpiece, clip, charsmap, scripts]


def golden(t):
    rows = []
    for text in TEXTS:
        t.encode_special_tokens = True
        plain = t.encode(text, add_special_tokens=False).ids
        t.encode_special_tokens = False
        ids = t.encode(text, add_special_tokens=False).ids
        special = t.encode(text, add_special_tokens=True).ids
        rows.append({"text": text, "ids": ids, "special_ids": special, "plain_ids": plain,
                     "decoded": t.decode(special, skip_special_tokens=False),
                     "skipped": t.decode(special, skip_special_tokens=True)})
    return rows


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", "unit", "data")
    for make in MAKERS:
        t = make()
        base = os.path.join(out, "tok_" + make.__name__)
        with open(base + ".json", "w") as f:
            f.write(json.dumps(json.loads(t.to_str()), ensure_ascii=True, indent=0) + "\n")
        with open(base + "_golden.json", "w") as f:
            json.dump({"tokenizers": tokenizers.__version__, "rows": golden(t)}, f, ensure_ascii=True, indent=0)
            f.write("\n")


main()
