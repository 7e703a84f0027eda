"""`quern template` against transformers' apply_chat_template, on the tokenizer packages' own templates.

The folders are those of test_tokenizer.py: Llama 3, Qwen 3 and Gemma 3, with QUERN_TEST_LONG=1 the others
too. Same text, and an error exactly where transformers raises one.
"""
import concurrent.futures
import itertools
import json
import os
import subprocess

import pytest

from conftest import QUERN_BIN
from test_templates import CONVERSATIONS, OPTIONS
from test_tokenizer import LONG, folder_of

transformers = pytest.importorskip("transformers")
WITH_TEMPLATE = ["llama3", "qwen3", "gemma3"] + (["deepseek_v3", "gemini"] if LONG else [])
WITHOUT_TEMPLATE = ["gptoss", "gpt4o", "claude", "llama2"]
SOME_OPTIONS = OPTIONS if LONG else OPTIONS[:1] + OPTIONS[2:3] + OPTIONS[4:5] + OPTIONS[7:]
# transformers looks into the list before the template does, and refuses an empty one by itself.
TALKS = {name: messages for name, messages in CONVERSATIONS.items() if messages}
JOBS = len(os.sched_getaffinity(0))


def quern_template(folder, messages, option):
    """The prompt, or None and the message."""
    more = dict(option)
    args = [QUERN_BIN, "template", folder, "--messages", "-"]
    if not more.pop("add_generation_prompt", False):
        args.append("--no-generation-prompt")
    tools = more.pop("tools", None)
    body = {"messages": messages}
    if tools is not None:
        more["tools"] = tools
    if more:
        args += ["--kwargs", json.dumps(more)]
    done = subprocess.run(args, input=json.dumps(body).encode(), capture_output=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr.decode()
    return (done.stdout.decode(), None) if done.returncode == 0 else (None, done.stderr.decode())


def theirs(tok, messages, option):
    try:
        return tok.apply_chat_template(messages, tokenize=False, **option), None
    except Exception as error:  # noqa: BLE001 - whatever the template raises
        return None, f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", WITH_TEMPLATE)
def test_package_template(name):
    folder = folder_of(name)
    tok = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    cases = list(itertools.product(TALKS.items(), SOME_OPTIONS))
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        ours = list(pool.map(lambda case: quern_template(folder, case[0][1], case[1]), cases))
    rendered = refused = 0
    for ((talk, messages), option), (got, error) in zip(cases, ours):
        want, why = theirs(tok, messages, option)
        assert got == want, f"{talk} with {list(option)}: ours: {error}; transformers: {why}"
        rendered += want is not None
        refused += want is None
        if why and why.startswith("TemplateError: "):  # raise_exception: the template's own words
            assert why[len("TemplateError: "):] in error
    print(f"{name}: {rendered} prompts, {refused} refusals, all the same")
    assert rendered > 50


@pytest.mark.skipif(not LONG, reason="the long form: QUERN_TEST_LONG=1")
@pytest.mark.parametrize("name", WITHOUT_TEMPLATE)
def test_package_without_template(name):
    """transformers has no prompt for these; mlx-lm's server has."""
    server = pytest.importorskip("mlx_lm.server")
    folder = folder_of(name)
    for talk in ("user", "system", "turns", "two systems"):
        got, error = quern_template(folder, CONVERSATIONS[talk], {})
        assert got == server.convert_chat(CONVERSATIONS[talk]), f"{talk}: {error}"
