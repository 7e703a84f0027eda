"""The JavaScript clients, as their users install them: OpenAI, Anthropic, Vercel's AI SDK, the pi coding agent."""
import json
import os
import subprocess

import pytest

from conftest import JS_FOLDER


def run(node, *argv, timeout=300, **env):
    done = subprocess.run([node, *argv], cwd=JS_FOLDER, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=timeout, check=False, env=dict(os.environ, **env))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("script", ["openai.mjs", "anthropic.mjs", "vercel.mjs"])
def test_client(node, scripted, script):
    assert run(node, script, scripted.url).endswith("ok\n")


def pi(node, url, home, prompt, *flags, **env):
    """The events of one run of the agent."""
    cli = os.path.join(JS_FOLDER, "node_modules", "@mariozechner", "pi-coding-agent", "dist", "cli.js")
    out = run(node, cli, "-p", "--mode", "json", "--no-session", "--offline", "-ne", "-ns", "-np", "-nc", "-e",
              "quern-provider.ts", "--provider", "quern", "--model", "local", *flags, prompt,
              HOME=str(home), PI_CODING_AGENT_DIR=str(home / "agent"), QUERN_URL=url, **env)
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def texts(message):
    return "".join(c["text"] for c in message["content"] if c["type"] == "text")


def test_pi(node, scripted, tmp_path):
    """The agent reads a file with its own tool and answers."""
    (tmp_path / "note.txt").write_text("the sky is green\n")
    call = json.dumps({"name": "read", "arguments": {"path": str(tmp_path / "note.txt")}})
    # The agent asks for thinking, so that the prompt ends inside a block.
    prompt = f"<|say|>I look.</think><tool_call>{call}</tool_call><|said|><|say|></think>It is green.<|said|>"
    events = pi(node, scripted.url, tmp_path, prompt)
    ends = [e["message"] for e in events if e["type"] == "message_end"]
    assert [m["role"] for m in ends] == ["user", "assistant", "toolResult", "assistant"], ends
    assert [c["type"] for c in ends[1]["content"]] == ["thinking", "toolCall"] and ends[1]["stopReason"] == "toolUse"
    assert "the sky is green" in texts(ends[2])
    assert texts(ends[3]) == "It is green." and ends[3]["stopReason"] == "stop"
    usage = ends[3]["usage"]
    assert usage["cacheRead"] > 0 and usage["output"] == len("It is green.") + 2


def test_pi_real_model(node, server, tmp_path):
    """The agent's own system prompt has the date and the folder in it, so what is said is not certain."""
    events = pi(node, server.url, tmp_path, "What is the capital of France?", "--no-tools", QUERN_MAX_TOKENS="24")
    last = [e["message"] for e in events if e["type"] == "message_end"][-1]
    assert last["stopReason"] in ("stop", "length") and texts(last)
    assert 0 < last["usage"]["output"] <= 24 and last["usage"]["input"] + last["usage"]["cacheRead"] > 24
