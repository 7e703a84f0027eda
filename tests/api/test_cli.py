"""The command line as a user meets it: streams, exit statuses, errors, finding models."""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import time

import pytest

from conftest import QUERN_BIN, QUERN_MODEL

QUESTION = "What is the capital of France?"


def quern(*argv, stdin=None, env=None, timeout=120):
    """Run it; returns (status, stdout, stderr)."""
    done = subprocess.run([QUERN_BIN, *argv], input=(stdin or "").encode(), capture_output=True, timeout=timeout,
                          env=dict(os.environ, NO_COLOR="1", **(env or {})), check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def fails(*argv, status, says, **kwargs):
    """It fails with this status, one line on stderr that holds `says`, and nothing on stdout."""
    got, out, err = quern(*argv, **kwargs)
    lines = [line for line in err.splitlines() if "error:" in line]
    assert got == status, err
    assert out == ""
    assert len(lines) == 1 and says in lines[0], err
    return lines[0]


@pytest.fixture
def empty(tmp_path):
    """An environment in which no model is found."""
    return {"QUERN_HOME": str(tmp_path / "home"), "HF_HUB_CACHE": str(tmp_path / "hub"), "HOME": str(tmp_path)}


@pytest.fixture(scope="session")
def model_dir(need_model):
    """The folder of the real model."""
    if os.path.isdir(QUERN_MODEL):
        return QUERN_MODEL
    rows = json.loads(quern("ls", "--json")[1])
    return next(row["path"] for row in rows if row["id"] == QUERN_MODEL)


# ---- the frame ----

def test_version():
    for argv in (["--version"], ["-v"], ["version"]):
        status, out, err = quern(*argv)
        assert status == 0 and err == "" and re.fullmatch(r"quern \d+\.\d+\.\d+\n", out)
    info = json.loads(quern("version", "--json")[1])
    assert {"version", "git", "compiler", "isa"} <= set(info)


def test_unknown_verb():
    status, out, err = quern("generat")
    assert status == 2
    assert err == "quern: error: unknown command: generat; did you mean generate?\n"
    assert "convert" in out


def test_unknown_flag():
    fails("generate", "--temprature", "1", status=2, says="unknown flag --temprature; did you mean --temperature?")
    fails("ls", "--max-size", "5 parsecs", status=2, says="--max-size: bad size: 5 parsecs")
    for verb in ("generate", "serve", "benchmark", "cache-prompt"):
        fails(verb, "--kv-quant", "5", status=2, says='unknown KV scheme "5"; choose off, config, 8, 4')
        fails(verb, "--kv-quant", "8", "--kv-bits", "8", status=2, says="--kv-quant and --kv-bits exclude each other")
    fails("generate", "--num-draft-tokens", "4", "x", "y", status=2, says="not supported yet: --num-draft-tokens")


def test_help_everywhere():
    names = [verb["name"] for verb in json.loads(quern("help", "--json")[1])["verbs"]]
    assert {"generate", "chat", "serve", "convert", "ls", "benchmark"} <= set(names)
    for name in names:
        for argv in (["help", name], [name, "--help"], [name, "--nonsense", "-h"]):
            status, out, err = quern(*argv)
            assert (status, err) == (0, "")
            assert out.startswith(f"quern {name} - ")
            assert "\033" not in out and not re.search(r" $", out, flags=re.M)
    assert quern("bench", "-h")[1] == quern("benchmark", "-h")[1]


def test_environment_is_checked(empty):
    fails("generate", "m", "p", status=2, says='QUERN_THREADS expects a whole number, not "many"',
          env=dict(empty, QUERN_THREADS="many"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell, tmp_path):
    status, out, _ = quern("completion", shell)
    assert status == 0 and "temperature" in out and "num-draft-tokens" not in out
    if shutil.which(shell):
        path = tmp_path / "script"
        path.write_text(out)
        subprocess.run([shell, "-n", str(path)], check=True)


def test_completion_offers_flags(tmp_path):
    path = tmp_path / "script"
    path.write_text(quern("completion", "bash")[1])
    line = f'. {path}; COMP_WORDS=(quern generate --temp); COMP_CWORD=2; _quern; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", line], capture_output=True, check=True)
    assert set(done.stdout.decode().split()) == {"--temp", "--temperature"}


# ---- mlx_lm's options ----

def mlx_lm_parser(command):
    import argparse
    import importlib
    from unittest import mock
    module = importlib.import_module(f"mlx_lm.{command}")
    for maker in ("setup_arg_parser", "configure_parser", "build_parser"):
        if hasattr(module, maker):
            return getattr(module, maker)()
    caught = []

    class Stop(Exception):
        pass

    def catch(self, *_args, **_kwargs):
        caught.append(self)
        raise Stop
    with mock.patch.object(argparse.ArgumentParser, "parse_args", catch), pytest.raises(Stop):
        module.main()
    return caught[0]


@pytest.mark.parametrize("command, verb", [("generate", "generate"), ("chat", "chat"), ("convert", "convert"),
                                           ("benchmark", "benchmark"), ("server", "serve")])
def test_knows_every_option_of_mlx_lm(command, verb):
    """Each long flag is accepted, or refused by its name; none is unknown."""
    tables = json.loads(quern("help", "--json")[1])["verbs"]
    known = {o["name"] for v in tables if v["name"] == verb for o in v["options"]}
    theirs = {s[2:] for a in mlx_lm_parser(command)._actions for s in a.option_strings if s.startswith("--")}
    assert theirs - known - {"help"} == set()


# ---- finding models ----

def test_no_models(empty):
    assert quern("ls", env=empty)[:2] == (0, "")
    assert json.loads(quern("ls", "--json", env=empty)[1]) == []
    fails("generate", "nope", "hello", status=1, says='no model matches "nope"', env=empty)
    fails("generate", "-p", "hello", status=1, says="quern convert", env=empty)


def put_model(folder, config, tensors=("w",)):
    """A model folder that is whole but tiny."""
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="ascii") as f:
        json.dump(config, f)
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
                         for i, name in enumerate(tensors)}).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header + bytes(4 * len(tensors)))


def test_ambiguous(empty):
    models = os.path.join(empty["QUERN_HOME"], "models")
    put_model(os.path.join(models, "org", "Tiny-4bit"), {"model_type": "llama"})
    put_model(os.path.join(models, "org", "Tiny-8bit"), {"model_type": "llama"})
    fails("generate", "tiny", "hello", status=1, says='"tiny" is ambiguous: org/Tiny-4bit, org/Tiny-8bit', env=empty)
    fails("generate", "-p", "hello", status=1, says="name one of: org/Tiny-4bit, org/Tiny-8bit", env=empty)


def test_not_a_model(empty, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    fails("generate", str(folder), "hello", status=1, says="is not a model folder: it has no config.json", env=empty)
    fails("generate", str(tmp_path / "none"), "hello", status=1, says="no such folder", env=empty)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    fails("generate", str(folder), "hello", status=1, says="no .safetensors file", env=empty)


def test_unsupported_architecture(empty, tmp_path):
    put_model(str(tmp_path / "m"), {"model_type": "frobnicator"})
    line = fails("generate", str(tmp_path / "m"), "hello", status=1, says='"frobnicator"', env=empty)
    assert "llama" in line


def test_hub_cache_agrees_with_huggingface_hub(empty):
    """What ls shows of a cache is what the hub's own scanner shows of it."""
    from huggingface_hub import scan_cache_dir
    hub = empty["HF_HUB_CACHE"]
    for repo, commits, main in (("org--A", ("a" * 40, "b" * 40), 1), ("B", ("c" * 40,), 0)):
        base = os.path.join(hub, "models--" + repo)
        for commit in commits:
            put_model(os.path.join(base, "snapshots", commit), {"model_type": "llama"})
        os.makedirs(os.path.join(base, "refs"))
        with open(os.path.join(base, "refs", "main"), "w", encoding="ascii") as f:
            f.write(commits[main])
    theirs = {(repo.repo_id, revision.commit_hash, "main" in revision.refs)
              for repo in scan_cache_dir(hub).repos for revision in repo.revisions}
    rows = json.loads(quern("ls", "--json", "--all-revisions", env=empty)[1])
    assert {(row["id"], row["revision"], row["canonical"]) for row in rows} == theirs
    assert {row["id"] for row in json.loads(quern("ls", "--json", env=empty)[1])} == {"org/A", "B"}


# ---- generate ----

def test_answer_alone_on_stdout(model_dir):
    status, out, err = quern("generate", model_dir, QUESTION)
    assert status == 0 and "Paris" in out and out.endswith("\n") and not out.endswith("\n\n")
    assert err == ""
    status, again, err = quern("generate", "--model", model_dir, QUESTION, "--stats", "--threads", "1")
    assert (status, again) == (0, out)
    assert re.search(r"prompt \d+ tokens, [\d.]+ tok/s; reply \d+ tokens, [\d.]+ tok/s", err)


def test_prompt_from_stdin(model_dir):
    _, out, _ = quern("generate", model_dir, QUESTION)
    assert quern("generate", model_dir, stdin=QUESTION)[1] == out
    assert quern("generate", model_dir, "-", stdin=QUESTION)[1] == out
    assert quern("generate", model_dir, "--prompt", "-", stdin=QUESTION)[1] == out
    fails("generate", model_dir, status=2, says="no prompt", stdin="")


def test_prefill_and_length(model_dir):
    _, out, _ = quern("generate", model_dir, QUESTION, "--prefill-response", "The answer is", "--max-tokens", "8")
    assert out.startswith("The answer is")
    assert "Paris" in quern("generate", model_dir, "The capital of France is", "--raw", "-m", "5")[1]


def test_same_seed_same_answer(model_dir):
    argv = ["generate", model_dir, "Tell me a story.", "--temp", "1", "--max-tokens", "24", "--seed"]
    first = quern(*argv, "7")
    assert first == quern(*argv, "7", "--threads", "1")
    assert first[1] != quern(*argv, "8")[1]


def test_reader_that_leaves(model_dir):
    """A closed pipe ends the program soon, without a message of a crash."""
    process = subprocess.Popen([QUERN_BIN, "generate", model_dir, "Count to one thousand.", "-m", "4000"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(1)
    process.stdout.close()
    assert process.wait(timeout=60) == 1


def test_interrupt(model_dir):
    process = subprocess.Popen([QUERN_BIN, "generate", model_dir, "Count to one thousand.", "-m", "4000"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    process.stdout.close()
    process.stderr.close()


def test_prompt_too_long(model_dir):
    fails("generate", model_dir, "word " * 200, "--context-length", "64", status=1, says="64")
    fails("generate", model_dir, "--chat-template-config", "[1]", "-p", "x", status=1, says="expects a JSON object")
    fails("generate", model_dir, "-p", "x", "--extra-eos-token", "no such", status=1, says="is not a token")


# ---- chat ----

def test_chat_over_a_pipe(model_dir):
    status, out, err = quern("chat", model_dir, "--temp", "0", stdin=f"{QUESTION}\nr\n{QUESTION}\nq\n")
    lines = out.splitlines()
    assert status == 0 and len(lines) == 2 and lines[0] == lines[1] and "Paris" in lines[0], (out, err)


def test_chat_saves_and_loads(model_dir, tmp_path):
    path = tmp_path / "talk.json"
    quern("chat", model_dir, "--temp", "0", stdin=f"{QUESTION}\n/save {path}\nq\n")
    saved = json.loads(path.read_text())
    assert [m["role"] for m in saved["messages"]] == ["user", "assistant"]
    _, _, err = quern("chat", model_dir, stdin=f"/load {path}\n/set top-p 9\n/frob\nq\n")
    assert "2 messages" in err and "unknown key or value out of range" in err and "unknown command /frob" in err


# ---- broken models ----

@pytest.fixture
def copy(model_dir, tmp_path):
    """A copy of the real model to break, its files shared until one is replaced."""
    target = tmp_path / "copy"
    target.mkdir()
    for name in os.listdir(model_dir):
        os.link(os.path.join(model_dir, name), target / name) if os.stat(model_dir).st_dev == os.stat(
            tmp_path).st_dev else shutil.copy(os.path.join(model_dir, name), target / name)
    return target


def replace(folder, name, data):
    os.remove(folder / name)
    (folder / name).write_bytes(data)


def weights(folder):
    """(header object, bytes of data) of the only weight file."""
    raw = (folder / "model.safetensors").read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + n]), raw[8 + n:]


def put_weights(folder, header, data):
    text = json.dumps(header).encode()
    replace(folder, "model.safetensors", struct.pack("<Q", len(text)) + text + data)


def test_truncated_weights(copy):
    raw = (copy / "model.safetensors").read_bytes()
    replace(copy, "model.safetensors", raw[:len(raw) // 2])
    fails("generate", str(copy), "x", status=1, says="model.safetensors")
    replace(copy, "model.safetensors", raw[:4])
    fails("generate", str(copy), "x", status=1, says="model.safetensors")


def test_lying_header(copy):
    header, data = weights(copy)
    header["model.norm.weight"]["data_offsets"] = [0, 1 << 60]
    put_weights(copy, header, data)
    fails("generate", str(copy), "x", status=1, says="model.norm.weight")


def test_missing_tensor(copy):
    header, data = weights(copy)
    del header["model.norm.weight"]
    put_weights(copy, header, data)
    fails("generate", str(copy), "x", status=1, says="model.norm.weight")


def test_wrong_shape(copy):
    header, data = weights(copy)
    norm = header["model.norm.weight"]
    norm["shape"] = [norm["shape"][0] // 2]
    begin, end = norm["data_offsets"]
    norm["data_offsets"] = [begin, (begin + end) // 2]
    put_weights(copy, header, data)
    fails("generate", str(copy), "x", status=1, says="model.norm.weight")


def test_broken_tokenizer(copy):
    replace(copy, "tokenizer.json", b'{"version": "1.0", "model": {"type": "BPE", "vocab": {')
    fails("generate", str(copy), "x", status=1, says="tokenizer.json")


def test_broken_template(copy):
    if (copy / "chat_template.jinja").exists():
        os.remove(copy / "chat_template.jinja")
    config = json.loads((copy / "tokenizer_config.json").read_text())
    config["chat_template"] = "{% for m in messages %}"
    replace(copy, "tokenizer_config.json", json.dumps(config).encode())
    fails("generate", str(copy), "x", status=1, says="template")


# ---- convert and benchmark ----

def test_convert_refuses_before_work(model_dir, tmp_path):
    fails("convert", model_dir, "--mlx-path", str(tmp_path), status=2, says="exist")
    fails("convert", model_dir, "--mlx-path", str(tmp_path / "x"), "-q", "-d", status=2, says="")
    fails("convert", model_dir, "--mlx-path", str(tmp_path / "x"), "--q-bits", "4", status=2, says="need -q")
    fails("convert", str(tmp_path / "none.gguf"), status=1, says="none.gguf")
    assert not (tmp_path / "x").exists()


def test_convert_is_found_by_name(model_dir, empty):
    status, out, err = quern("convert", model_dir, "-d", "--dtype", "float16", env=empty)
    assert status == 0, err
    path = out.strip()
    assert os.path.dirname(path) == os.path.join(empty["QUERN_HOME"], "models")
    assert json.loads(quern("ls", "--json", env=empty)[1])[0]["path"] == path
    assert "Paris" in quern("generate", "smol", QUESTION, env=empty)[1]


def test_convert_interrupted_leaves_nothing(model_dir, tmp_path):
    target = tmp_path / "out"
    process = subprocess.Popen([QUERN_BIN, "convert", model_dir, "-d", "--dtype", "float32", "--mlx-path", str(target)],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not os.listdir(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode in (0, 130)
    assert os.listdir(tmp_path) == ([] if process.returncode else ["out"])


def test_benchmark(model_dir):
    status, out, err = quern("benchmark", model_dir, "--pp", "16", "--tg", "8", "-r", "3", "-o", "json")
    assert status == 0, err
    report = json.loads(out)
    assert [t["test"] for t in report["tests"]] == ["pp16", "tg8"]
    for test in report["tests"]:
        runs, rate = sorted(test["runs"]), test["tok_s"]
        assert len(runs) == 3 and rate["median"] == runs[1] and rate["min"] == runs[0] > 0
    decode = report["tests"][1]
    weights_bytes = os.path.getsize(os.path.join(model_dir, "model.safetensors"))
    assert 0.8 < decode["bytes_per_token"] / weights_bytes < 1.2
    share = decode["tok_s"]["median"] * decode["bytes_per_token"] / report["read_bytes_s"]
    assert decode["bandwidth_share"] == pytest.approx(share, rel=1e-3) and share < 1.5
    status, out, _ = quern("benchmark", model_dir, "--pp", "0", "--tg", "4", "-r", "1")
    assert status == 0 and "| tg4 |" in out and "read bandwidth" in out


def test_benchmark_of_several_sequences(model_dir):
    status, out, err = quern("benchmark", model_dir, "--pp", "0", "--tg", "8", "-b", "1,5", "-r", "1", "-o", "json")
    assert status == 0, err
    one, five = json.loads(out)["tests"]
    assert (one["test"], one["n_seqs"], five["test"], five["n_seqs"]) == ("tg8", 1, "tg8x5", 5)
    assert five["tok_s"]["median"] > 0 and five["bytes_per_token"] is None
    assert quern("benchmark", model_dir, "-b", "0")[0] == 2
