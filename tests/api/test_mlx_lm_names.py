"""The program under mlx_lm's names: `mlx_lm.CMD` and `quern.CMD` as a symlink."""
import os
import re
import subprocess

import httpx
import pytest

from conftest import QUERN_BIN, QUERN_MODEL


@pytest.fixture
def named(tmp_path):
    """Run the program under another name; returns (status, stdout, stderr)."""
    def run(name, *argv):
        path = tmp_path / name
        if not path.exists():
            path.symlink_to(os.path.abspath(QUERN_BIN))
        done = subprocess.run([str(path), *argv], stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
                              env=dict(os.environ, NO_COLOR="1"), check=False)
        return done.returncode, done.stdout.decode(), done.stderr.decode()
    run.folder = tmp_path
    return run


def test_generate(named, need_model):
    status, out, err = named("mlx_lm.generate", "--model", QUERN_MODEL, "--max-tok", "5", "--prompt", r"one\ntwo")
    assert status == 0, err
    lines = out.split("\n")
    assert lines[0] == "=" * 10 and lines[-5] == "=" * 10
    assert re.fullmatch(r"Prompt: \d+ tokens, [\d.]+ tokens-per-sec", lines[-4])
    assert re.fullmatch(r"Generation: 5 tokens, [\d.]+ tokens-per-sec", lines[-3])
    assert re.fullmatch(r"Peak memory: \d+\.\d{3} GB", lines[-2]) and lines[-1] == ""
    text = "\n".join(lines[1:-5])
    same = named("quern.generate", "--model", QUERN_MODEL, "-m", "5", "-p", "one\ntwo", "--verbose", "False")
    assert same == (0, text + "\n", "")
    plain = subprocess.run([QUERN_BIN, "generate", QUERN_MODEL, "one\ntwo", "-m", "5"], capture_output=True, check=True)
    assert plain.stdout.decode() == text + "\n"


def test_defaults(named, need_model):
    status, out, err = named("mlx_lm.generate", "--model", QUERN_MODEL)
    assert status == 0, err
    hello = subprocess.run([QUERN_BIN, "generate", QUERN_MODEL, "hello", "-m", "100"], capture_output=True, check=True)
    assert out.split("\n")[1] == hello.stdout.decode().split("\n")[0]


def test_server(named, need_model):
    (named.folder / "mlx_lm.server").symlink_to(os.path.abspath(QUERN_BIN))
    process = subprocess.Popen([str(named.folder / "mlx_lm.server"), "--model", QUERN_MODEL, "--port", "0",
                                "--prompt-cache-b", "64MB"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        url = re.match(rb"listening on (\S+) ", process.stdout.readline())[1].decode()
        settings = httpx.get(url + "/props").json()
        assert settings["total_slots"] == 32
        params = settings["default_generation_settings"]["params"]
        assert (params["temperature"], params["top_k"], params["max_tokens"]) == (0, 0, 512)
    finally:
        process.terminate()
        assert process.wait(timeout=60) == 0


def test_errors(named):
    assert named("mlx_lm.lora", "--train")[0] == 2
    assert "not supported yet: mlx_lm.lora" in named("mlx_lm.lora")[2]
    status, _, err = named("mlx_lm.generate", "--draft-m", "small", "--prompt", "x")
    assert status == 2 and "not supported yet" in err and "--draft-model" in err
    status, _, err = named("mlx_lm.generate", "--max", "4")
    assert status == 2 and "ambiguous" in err and "--max-tokens" in err
    assert named("mlx_lm.generate", "--help")[0] == 0


@pytest.mark.parametrize("flags,words", [
    (["--mtp", "on"], "speculation"), (["--isolate"], "process of its own"), (["--ssd-cache", "x"], "disk tier"),
    (["--model-pool", "2"], "several models"), (["--l3"], "third tier"),
    (["--adapter", "x"], "adapters"), (["--draft-model", "x"], "speculation"), (["--open"], "browser"),
    (["--pipeline"], "several hosts"), (["--expert-offload"], "experts"), (["--auto-download"], "downloading")])
def test_serve_refuses_by_name(flags, words):
    done = subprocess.run([QUERN_BIN, "serve", *flags], capture_output=True, check=False)
    assert done.returncode == 2
    assert f"not supported yet: {flags[0]}: " in done.stderr.decode() and words in done.stderr.decode()


def test_budgets(start):
    server = start("--memory-budget", "0.2")
    stats = httpx.get(server.url + "/stats").json()["admission"]
    assert stats["memory_budget_bytes"] == 200_000_000
    assert stats["weights_bytes"] < stats["usable_bytes"] <= 200_000_000
    reply = httpx.post(server.url + "/v1/completions", json={"prompt": "a " * 4000})
    error = reply.json()["error"]
    assert reply.status_code == 400 and error["type"] == "memory_admission"
    assert error["code"] == "context_over_budget" and error["n_ctx"] == stats["max_safe_context"]
    done = subprocess.run([QUERN_BIN, "serve", QUERN_MODEL, "--port", "0", "--memory-budget", "0.05"],
                          capture_output=True, check=False)
    assert done.returncode == 1 and "memory budget of 0.050 GB" in done.stderr.decode()


def test_strict_budget(start):
    server = start("--kv-budget", "strict", "--memory-budget", "0.2")
    reply = httpx.post(server.url + "/v1/completions", json={"prompt": "One two three", "max_tokens": 4})
    assert reply.status_code == 200
    done = subprocess.run([QUERN_BIN, "serve", QUERN_MODEL, "--kv-budget", "strickt"], capture_output=True, check=False)
    assert done.returncode == 2 and "strickt (right would be 1.5GB, or strict)" in done.stderr.decode()


def test_chat_template(start):
    server = start("--chat-template", "{% for m in messages %}<{{ m.content }}>{% endfor %}")
    body = {"messages": [{"role": "user", "content": "hi"}]}
    assert httpx.post(server.url + "/apply-template", json=body).json() == {"prompt": "<hi>"}
