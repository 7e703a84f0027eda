"""Our chat templates against jinja2 as transformers sets it up: published templates x conversations.

The templates come from QUERN_TEST_SHARED (or ../shared beside the repository), folder
data/templates; without it these tests are skipped. RENDER_TEMPLATE is our renderer
(tests/tools/render_template.c), by default the one in build/release.
"""
import datetime
import glob
import itertools
import json
import os
import random
import subprocess

import pytest

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SHARED = os.environ.get("QUERN_TEST_SHARED") or os.path.join(ROOT, "..", "shared")
TEMPLATES = sorted(glob.glob(os.path.join(SHARED, "data", "templates", "*.jinja")))
RENDER = os.environ.get("RENDER_TEMPLATE") or os.path.join(ROOT, "build", "release", "tests", "render_template")
CLOCK = 1785412800  # 2026-07-30 12:00 UTC

if not os.path.exists(RENDER):
    pytest.skip(f"no renderer at {RENDER}: build render_template or set RENDER_TEMPLATE", allow_module_level=True)
chat_template_utils = pytest.importorskip("transformers.utils.chat_template_utils")


class Renderer:
    """One `render_template --batch` process."""

    def __init__(self):
        env = dict(os.environ, TZ="UTC", QUERN_TEST_CLOCK=str(CLOCK))
        self.process = subprocess.Popen([RENDER, "--batch"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env)

    def __call__(self, job):
        """The rendered text, or None and the message."""
        self.process.stdin.write(json.dumps(job).encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"the renderer died on {str(job)[:500]}"
        reply = json.loads(line)
        return reply.get("out"), reply.get("error")


@pytest.fixture(scope="module")
def ours():
    renderer = Renderer()
    yield renderer
    renderer.process.stdin.close()
    assert renderer.process.wait(30) == 0


def oracle_template(source):
    template = chat_template_utils._compile_jinja_template(source)
    now = datetime.datetime.fromtimestamp(CLOCK, datetime.timezone.utc)
    template.globals["strftime_now"] = now.strftime
    return template


def oracle(source, variables):
    """The rendered text, or None and the error: also if the template does not compile."""
    try:
        return oracle_template(source).render(**variables), None
    except Exception as error:  # noqa: BLE001 - any failure of the template counts
        return None, f"{type(error).__name__}: {error}"


TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather of a place.\nTwo lines, \"quoted\" <tag> & ünï.",
        "parameters": {"type": "object", "properties": {
            "city": {"type": "string", "description": "Name", "enum": ["Paris", "Köln"]},
            "days": {"type": "integer", "default": 3, "minimum": 1},
            "exact": {"type": "boolean"},
            "unit": {"type": ["string", "null"], "nullable": True},
            "where": {"type": "object", "properties": {"lat": {"type": "number"}, "lon": {"type": "number"}},
                      "required": ["lat"]},
            "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
            "any": {"anyOf": [{"type": "string"}, {"type": "integer"}], "description": "either"}},
            "required": ["city", "days"]},
        "return": {"type": "object", "description": "what comes back"}}},
    {"type": "function", "function": {"name": "now", "description": "The time",
                                      "parameters": {"type": "object", "properties": {}}}},
]
ARGUMENTS = {"city": "Köln \"am\" Rhein", "days": 2, "exact": True, "where": {"lat": 1.5, "lon": -3}, "tags": ["a", "b"],
             "unit": None}


def call(name="get_weather", arguments=ARGUMENTS, ident="call_123"):
    return {"id": ident, "type": "function", "function": {"name": name, "arguments": arguments}}


def user(text="Hello <b>you</b>, 'tis \"fine\" & 日本語 🎉\n\nnew line  "):
    return {"role": "user", "content": text}


def assistant(text="  Hi there.\n", **more):
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "  You are terse.\nReally. "}
DEVELOPER = {"role": "developer", "content": "Follow the rules."}
RESULT = {"role": "tool", "name": "get_weather", "tool_call_id": "call_123", "content": "{\"temp\": 21.5, \"ok\": true}"}
PARTS = {"role": "user", "content": [{"type": "text", "text": "Look: "}, {"type": "image"}, {"type": "text", "text": "end"}]}
URLS = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x.png"}},
                                    {"type": "audio", "audio_url": "a.wav"}, {"type": "video", "video": "v.mp4"}]}
TEXT_PARTS = {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}
THOUGHT = "<think>\nhm, let me see\n</think>\n\nDone."

CONVERSATIONS = {
    "user": [user()],
    "system": [SYSTEM, user()],
    "developer": [DEVELOPER, user()],
    "turns": [SYSTEM, user("a"), assistant("b"), user("c"), assistant("d"), user("e")],
    "ends with assistant": [user("a"), assistant("b")],
    "assistant first": [assistant("b"), user("a")],
    "two users": [user("a"), user("b")],
    "two assistants": [user("a"), assistant("b"), assistant("c")],
    "two systems": [SYSTEM, SYSTEM, user("a")],
    "late system": [user("a"), SYSTEM, user("b")],
    "system only": [SYSTEM],
    "empty": [],
    "empty texts": [{"role": "system", "content": ""}, user(""), assistant("")],
    "null content": [user("a"), {"role": "assistant", "content": None, "tool_calls": [call()]}, RESULT],
    "no content": [user("a"), {"role": "assistant", "tool_calls": [call()]}, RESULT],
    "parts": [PARTS],
    "urls": [URLS],
    "text parts": [TEXT_PARTS, assistant(), user()],
    "system parts": [{"role": "system", "content": [{"type": "text", "text": "sys"}]}, TEXT_PARTS],
    "assistant parts": [user("a"), {"role": "assistant", "content": [{"type": "text", "text": "x"}]}, user("b")],
    "call": [user("w?"), assistant("", tool_calls=[call()])],
    "call text": [user("w?"), assistant("I look.", tool_calls=[call()]), RESULT],
    "call answer": [SYSTEM, user("w?"), assistant("", tool_calls=[call()]), RESULT, assistant("21."), user("ok")],
    "two calls": [user("w?"), assistant("", tool_calls=[call(), call("now", {}, "call_456")]), RESULT,
                  dict(RESULT, name="now", tool_call_id="call_456", content="noon"), assistant("done")],
    "nine ids": [user("w?"), assistant("", tool_calls=[call(ident="abcdefghi")]), dict(RESULT, tool_call_id="abcdefghi"),
                 assistant("ok"), user("more")],
    "string arguments": [user("w?"), assistant("", tool_calls=[call(arguments=json.dumps(ARGUMENTS))]), RESULT],
    "result object": [user("w?"), assistant("", tool_calls=[call()]), dict(RESULT, content={"temp": 21})],
    "result parts": [user("w?"), assistant("", tool_calls=[call()]),
                     dict(RESULT, content=[{"type": "text", "text": "hot"}])],
    "orphan result": [user("w?"), RESULT],
    "unknown role": [{"role": "critic", "content": "no"}, user("a")],
    "no role": [{"content": "x"}],
    "think text": [user("a"), assistant(THOUGHT), user("b"), assistant(THOUGHT)],
    "reasoning": [user("a"), assistant("b", reasoning_content="because\n", reasoning="because\n", thinking="because\n"),
                  user("c"), assistant("d", reasoning_content="so")],
    "reasoning call": [user("a"), assistant("", reasoning_content="use it", thinking="use it", tool_calls=[call()]), RESULT,
                       assistant("x", reasoning_content="then", thinking="then"), user("b")],
    "think parts": [user("a"), {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"},
                                                                 {"type": "text", "text": "x"}]}, user("b")],
    "other roles": [user("a"), {"role": "observation", "content": "seen"}, {"role": "ipython", "content": {"a": 1}},
                    {"role": "function", "name": "f", "content": "r"}, {"role": "model", "content": "m"}],
}
OPTIONS = [
    {},
    {"add_generation_prompt": True},
    {"add_generation_prompt": True, "tools": TOOLS},
    {"add_generation_prompt": True, "enable_thinking": True, "thinking": True},
    {"add_generation_prompt": True, "enable_thinking": False, "thinking": False, "reasoning_effort": "low"},
    {"add_generation_prompt": True, "tools": TOOLS, "enable_thinking": False, "tools_in_user_message": False},
    {"tools": [], "documents": [{"title": "T", "text": "Some <text>"}, {"title": "U", "text": "More"}], "date_string": "1 May"},
    {"add_generation_prompt": True, "documents": [{"doc_id": 0, "title": "T", "text": "x", "data": "y"}],
     "reasoning_effort": "high", "model_identity": "You are X.", "builtin_tools": ["browser", "python"],
     "custom_tools": TOOLS, "clear_thinking": False, "preserve_thinking": True, "keep_past_thinking": True,
     "thinking_mode": "thinking", "add_vision_id": True, "controls": {"length": "long"}},
]
BASE = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>", "tools": None,
        "documents": None, "add_generation_prompt": False}


@pytest.mark.skipif(not TEMPLATES, reason=f"no templates in {SHARED}/data/templates (set QUERN_TEST_SHARED)")
@pytest.mark.parametrize("path", TEMPLATES, ids=[os.path.basename(p) for p in TEMPLATES])
def test_published_template(ours, path):
    with open(path, encoding="utf-8", newline="") as f:
        source = f.read()
    rendered = 0
    for (name, messages), option in itertools.product(CONVERSATIONS.items(), OPTIONS):
        variables = {**BASE, **option, "messages": messages}
        want, why = oracle(source, variables)
        got, error = ours({"source": source, "vars": variables})
        assert got == want, f"{name} with {list(option)}: ours failed: {error}; the oracle: {why}"
        rendered += want is not None
    if os.path.basename(path) != "Kimi-K2-Instruct.jinja":
        assert rendered > 0 or not compiles(source), "nothing rendered: the comparison shows nothing"


def compiles(source):
    try:
        oracle_template(source)
        return True
    except Exception:  # noqa: BLE001
        return False
