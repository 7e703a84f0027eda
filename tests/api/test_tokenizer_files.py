"""Tokenizers that are no tokenizer.json: tokenizer.model beside `sentencepiece`, tiktoken.model beside
`tiktoken`. The models are trained or made here."""
import base64
import json

import pytest
import sentencepiece
import tiktoken

import tokenizer_texts
from test_tokenizer import LONG, differences, quern

# What the model's own repository splits by, written out for Python's regex.
KIMI = "|".join([
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
MODELS = {
    "unigram": {"model_type": "unigram"},
    "unigram_bytes": {"model_type": "unigram", "byte_fallback": True, "remove_extra_whitespaces": False,
                      "normalization_rule_name": "nmt_nfkc_cf"},
    "unigram_symbols": {"model_type": "unigram", "normalization_rule_name": "identity",
                        "remove_extra_whitespaces": False,
                        "user_defined_symbols": ["<sep>", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "foo bar", "ab",
                                                 "the", "aa"]},
    "unigram_symbols_bytes": {"model_type": "unigram", "byte_fallback": True, "remove_extra_whitespaces": False,
                              "user_defined_symbols": ["q", "日", "aaaa", "//", "\u2581\u2581\u2581", "it", "0x"]},
    "bpe": {"model_type": "bpe"},
    "llama": {"model_type": "bpe", "byte_fallback": True, "split_digits": True, "normalization_rule_name": "identity",
              "remove_extra_whitespaces": False},
    "symbols": {"model_type": "bpe", "byte_fallback": True, "normalization_rule_name": "identity",
                "add_dummy_prefix": False, "remove_extra_whitespaces": False,
                "user_defined_symbols": ["<sep>", "\u2581\u2581", "\u2581\u2581\u2581\u2581", "foo bar", "\n\n"]},
    "suffix": {"model_type": "bpe", "treat_whitespace_as_suffix": True},
}


def texts(added=()):
    plain = tokenizer_texts.corpus(3 << 20 if LONG else 40000)
    plain += list(tokenizer_texts.strings(100000 if LONG else 2000, list(added) + ["foo bar", "    ", "  a"], seed=5))
    return [t for t in plain if "\0" not in t]  # sentencepiece ends a text there


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("spm") / "corpus.txt"
    lines = [line for t in tokenizer_texts.corpus(150000, seed=7) for line in t.replace("\0", " ").split("\n")]
    path.write_text("\n".join(line for line in lines if line.strip() and len(line) < 3000), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", MODELS)
def test_sentencepiece(name, corpus_file, tmp_path):
    sentencepiece.SentencePieceTrainer.train(input=str(corpus_file), model_prefix=str(tmp_path / "tokenizer"),
                                             vocab_size=1500, hard_vocab_limit=False, minloglevel=2, **MODELS[name])
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    some = texts(["<sep>"])
    theirs = oracle.encode(some)
    ours = quern(str(tmp_path), some, "--no-special", "--plain")
    assert not differences(some, ours, theirs)
    # Unknown pieces have a spelling of the library's own in decoded text.
    known = [ids for ids in theirs if oracle.unk_id() not in ids]
    assert len(known) > 100
    decoded = [oracle.decode(ids) for ids in known]
    assert not differences(known, quern(str(tmp_path), known, "--decode", "--no-special"), decoded)


def test_sentencepiece_specials(corpus_file, tmp_path):
    """bos by the class named in tokenizer_config.json; control tokens match in text."""
    sentencepiece.SentencePieceTrainer.train(input=str(corpus_file), model_prefix=str(tmp_path / "tokenizer"),
                                             vocab_size=1000, hard_vocab_limit=False, minloglevel=2, **MODELS["llama"])
    oracle = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "tokenizer.model"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "legacy": False,
        "added_tokens_decoder": {str(oracle.get_piece_size()): {"content": "<|x|>", "special": True}}}))
    hi = oracle.encode("hi")
    got = quern(str(tmp_path), ["hi", "hi</s>", "hi<|x|>"])
    assert got == [[1] + hi, [1] + hi + [2], [1] + hi + [oracle.get_piece_size()]]


def test_tiktoken(tmp_path):
    ranks = {bytes([b]): b for b in range(256)}
    for text in tokenizer_texts.corpus(30000, seed=9):
        raw = text.encode()
        for n in (2, 3, 4, 6):
            for at in range(0, len(raw) - n, 7):
                part = raw[at:at + n]
                if len(ranks) < 6000 and any(part[:k] in ranks and part[k:] in ranks for k in range(1, n)):
                    ranks.setdefault(part, len(ranks))
    (tmp_path / "tiktoken.model").write_bytes(b"".join(base64.b64encode(k) + b" %d\n" % v for k, v in ranks.items()))
    special = {"[BOS]": len(ranks), "[EOS]": len(ranks) + 1, "<|im_end|>": len(ranks) + 4}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({
        "added_tokens_decoder": {str(i): {"content": s, "special": True} for s, i in special.items()}}))
    oracle = tiktoken.Encoding("kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special)
    some = texts(special)
    ours = quern(str(tmp_path), some)
    theirs = [oracle.encode(t, allowed_special="all") for t in some]
    assert not differences(some, ours, theirs)
    decoded = [oracle.decode(ids) for ids in theirs]
    assert not differences(some, quern(str(tmp_path), theirs, "--decode"), decoded)


@pytest.mark.parametrize("name,data,words", [
    ("tokenizer.model", b"\x0a\x7f", "the file is cut"),
    ("tokenizer.model", b"", "there are no pieces"),
    ("tokenizer.model", b"\x0a\x02\x0a\x00", "piece 0 has no text"),
    ("tiktoken.model", b"QQ==\n", "line 1 is not a token and its rank"),
    ("tiktoken.model", b"Q!== 0\n", "line 1 has a token that is not base64"),
    ("tiktoken.model", b"QQ== 0\n", "no token for byte 0"),
    ("tiktoken.model", b"QQ== 1\n", "rank 0 is missing"),
])
def test_broken(name, data, words, tmp_path):
    (tmp_path / name).write_bytes(data)
    with pytest.raises(AssertionError, match=words):
        quern(str(tmp_path), ["a"])
