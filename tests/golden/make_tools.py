"""Golden cases of the tool-call parsers: what mlx_lm.tool_parsers says of each text.

Writes tools.json: [{"parser", "text", "tools", "calls"}], calls null where the text is refused. Where
Quern differs on purpose (spec server 12, "Q"), the case is made with `differs`: its calls are written
here by hand with the reason, and mlx-lm's own answer stands beside them as "mlx".

Also writes markers.json, what mlx_lm.generate.TextStateMachine makes of random texts, and tool_families.json: {template: parser} for templates made here, by
mlx_lm.tokenizer_utils._infer_tool_parser.

    python tests/golden/make_tools.py
"""
import importlib
import json
import os
import random
import sys

import mlx_lm
from mlx_lm import tokenizer_utils

HERE = os.path.dirname(os.path.abspath(__file__))

PARAMS = {
    "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": "number"}, "b": {"type": "boolean"},
    "o": {"type": "object"}, "a": {"type": "array"}, "any": {"description": "no type"},
    "en": {"enum": ["x", "y"]}, "eni": {"enum": [1, 2]},
    "sn": {"type": ["string", "null"]}, "in": {"type": ["integer", "null"]}, "is": {"type": ["integer", "string"]},
    "of": {"anyOf": [{"type": "integer"}, {"type": "string"}]},
    "oo": {"oneOf": [{"type": "array"}, {"type": "null"}]},
    "u": {"type": "uint32"}, "f": {"type": "float64"}, "d": {"type": "dict[str, int]"}, "t": {"type": "tuple"},
}
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": PARAMS}}},
    {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "h"}},
]

cases = []


def plain(result):
    """A parser's result as a list of calls."""
    calls = result if isinstance(result, list) else [result]
    return [{k: c[k] for k in ("name", "arguments", "id") if k in c} for c in calls]


def ask(parser, text, tools):
    try:
        calls = plain(importlib.import_module(f"mlx_lm.tool_parsers.{parser}").parse_tool_call(text, tools))
        json.dumps(calls, allow_nan=False)
        return calls
    except Exception:
        return None


def same(parser, *texts, tools=TOOLS):
    for text in texts:
        cases.append({"parser": parser, "text": text, "tools": tools, "calls": ask(parser, text, tools)})


def differs(parser, text, calls, why, tools=TOOLS):
    mlx = ask(parser, text, tools)
    if mlx == calls:
        sys.exit(f"{parser}: {text!r}: no difference any more ({why})")
    cases.append({"parser": parser, "text": text, "tools": tools, "calls": calls, "mlx": mlx, "why": why})


def call(name, id=None, /, **arguments):
    return {"name": name, "arguments": arguments, **({"id": id} if id else {})}


# ---- json_tools

same("json_tools",
     '{"name": "f", "arguments": {"a": 1}}', '\n{"name": "f", "arguments": {"a": 1}}\n',
     '{"name": "f", "arguments": {}}', '{"arguments": {"a": [1, 2.5, null, true]}, "name": "f"}',
     '[{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"x": "y"}}]',
     '{"name": "f", "arguments": {"s": "caf\\u00e9 \\ud83d\\ude00 </tool_call>"}}',
     '{"name": "f", "arguments": {"s": "a\\nb\\"c\\\\"}}', '{"name": "f", "arguments": {"x": 1e3, "y": -0.25}}',
     '{"name": "f", "arguments": {"a": 1}', 'f', '', '{"name": "f" "arguments": {}}',
     '{"name": "f", "arguments": {"x": {"y": {"z": [[], {}]}}}}')
differs("json_tools", '{"name": "f"}', [call("f")], "arguments may be missing")
differs("json_tools", '{"name": "f", "arguments": "{\\"a\\": 1}"}', [call("f", a=1)], "arguments as text are read")
differs("json_tools", '{"name": "f", "arguments": "a"}', None, "arguments must be an object")
differs("json_tools", '{"name": "f", "arguments": [1]}', None, "arguments must be an object")
differs("json_tools", '{"name": "f", "parameters": {"a": 1}}', [call("f", a=1)], "parameters")
differs("json_tools", '{"function": {"name": "f", "arguments": {"a": 1}}}', [call("f", a=1)], "function around")
differs("json_tools", '{"arguments": {"a": 1}}', None, "a name must be there")
differs("json_tools", '{"name": "f", "arguments": {"s": "a\nb"}}', [call("f", s="a\nb")], "raw control characters")
differs("json_tools", '<function=f>\n<parameter=i>\n5\n</parameter>\n</function>', [call("f", i=5)],
        "Qwen3-Coder's form between the same markers")

# ---- qwen3_coder


def coder(name="f", **params):
    return f"\n<function={name}>\n" + "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in params.items()) + "</function>\n"


same("qwen3_coder",
     coder(), coder(s="value"), coder(s="two\nlines\n"), coder(s="\n\nx\n\n"), coder(s="1"), coder(s=""), coder(i="1"),
     coder(i="1.0"), coder(i="-7"), coder(n="1.5"), coder(n="2.0"), coder(n="1e3"), coder(b="true"), coder(b="TRUE"),
     coder(b="yes"), coder(b="false"), coder(o='{"a": [1, null]}'), coder(o="{'a': (1, 2), 'b': None}"),
     coder(o="not an object"), coder(a="[1, 'x', True]"), coder(a='["x\ty"]'), coder(unknown="1"), coder(unknown="[1]"),
     coder(u="12"), coder(f="0.5"), coder(d="{'a': 1}"), coder(t="(1, 2)"), coder(t="plain"), coder(en="x"),
     coder(any="1"), coder(any="[1]"), coder(any="{\"a\": 1}"), coder(i="null"), coder(o="NULL"), coder(unknown="null"),
     coder("nobody", x="1"), coder("h", x="1"), coder(s="a < b && c > d </param>"), coder(s="<function=x>"),
     "no function", "<function=f>", "<function=f></function>", "<function=f><parameter=s>x</parameter></function>",
     coder(s="héllo 😀"), coder(s="a", i="2", b="true", n="0.5"), "")
differs("qwen3_coder", coder(i="1.5"), [call("f", i="1.5")], "a bad number stays text")
differs("qwen3_coder", coder(i="x"), [call("f", i="x")], "a bad number stays text")
differs("qwen3_coder", coder(n="x"), [call("f", n="x")], "a bad number stays text")
differs("qwen3_coder", coder(n="1e999"), [call("f", n="1e999")], "no infinity in JSON")
differs("qwen3_coder", coder(s="null"), [call("f", s="null")], "null stays text where only text is allowed")
differs("qwen3_coder", coder(s="x").rstrip() + " \n", [call("f", s="x")], "white space behind the closing tag")
differs("qwen3_coder", coder(s="x") + coder("g"), [call("f", s="x"), call("g")], "two functions in one block")
differs("qwen3_coder", coder(of="5"), [call("f", of=5)], "anyOf: what is no text first")
same("qwen3_coder", coder(of="x"), coder(sn="x"))
differs("qwen3_coder", coder(oo="(1, 2)"), [call("f", oo=[1, 2])], "oneOf")
same("qwen3_coder", coder(oo="null"), coder(sn="null"), coder(**{"in": "5"}), coder(**{"is": "7"}))
differs("qwen3_coder", '{"name": "f", "arguments": {"a": 1}}', [call("f", a=1)], "JSON between the same markers")
differs("qwen3_coder", "<function=f>\n<parameter=s>\nx\n</function>", [call("f", s="x")],
        "a value without its end is not lost")

# ---- gemma4

same("gemma4",
     'call:f{city:<|"|>Paris<|"|>,n:2,opt:{deep:true},tags:[<|"|>a<|"|>]}', "call:f{}", 'call:f{s:<|"|><|"|>}',
     'call:f{s:<|"|>a{b}c,d:e<|"|>}', "call:f{n:-1.5,b:false,z:null}", 'call:f{a:[1,2,[3]],o:{p:{q:<|"|>r<|"|>}}}',
     "call:f{a:1}call:g{b:2}", 'call:my-tool_2{x:<|"|>"quoted" \\ back\nline<|"|>}', "text call:f{a:1} text",
     "call:f{a:1", "call:f", "nothing", "", 'call:f{s:<|"|>open}', "call:{a:1}", 'call:f{a:[{b:1},{b:2}]}')
differs("gemma4", "call:f{a: 1, my-key : 2}", [call("f", **{"a": 1, "my-key": 2})], "spaces and dashes at keys")
differs("gemma4", "call:f{city:Paris, unit:deg C}", [call("f", city="Paris", unit="deg C")], "bare words are text")

# ---- function_gemma

same("function_gemma",
     "call:f{city:<escape>Paris<escape>,n:2}", "call:f{}", "call:f{b:true,z:null,x:-0.5}", "call:f{s:<escape>a,b:c<escape>}",
     "call:f{s:word}", "nope", "call:f{s:<escape>x<escape>,t:<escape><escape>}")
differs("function_gemma", "call:f{o:{a:1,b:{c:2}}}", [call("f", o={"a": 1, "b": {"c": 2}})], "nested objects")
differs("function_gemma", "call:f{s:<escape>a}b<escape>}", [call("f", s="a}b")], "a brace inside a string")
differs("function_gemma", "call:f{a:1}call:g{b:2}", [call("f", a=1), call("g", b=2)], "every call")
same("function_gemma", "call:f{s:<escape>open}")
differs("function_gemma", "call:f{a:[1,2]}", [call("f", a=[1, 2])], "lists")

# ---- glm47, laguna, longcat


def pairs(name, prefix="", gap="\n", **params):
    k, v = f"{prefix}arg_key", f"{prefix}arg_value"
    return name + gap + gap.join(f"<{k}>{a}</{k}>{gap}<{v}>{b}</{v}>" for a, b in params.items()) + gap


for parser, prefix in (("glm47", ""), ("laguna", ""), ("longcat", "longcat_")):
    for gap in ("\n", "", "\\n", " \n "):
        if gap == "\\n" and parser != "longcat":
            same(parser, "f\n" + pairs("", prefix, gap, s="x").lstrip("\\n").removesuffix("\\n"))
            continue
        if gap != "\\n":
            same(parser, pairs("f", prefix, gap, s="1", i="1", x="True"))
    same(parser, pairs("f", prefix, s="Paris"), pairs("f", prefix, s="5"), pairs("f", prefix, i="5", n="1.5", b="true"),
         pairs("f", prefix, x="01"), pairs("f", prefix, x="None"), pairs("f", prefix, x="null"), pairs("f", prefix, x="{'a': 1}"),
         pairs("f", prefix, x='{"a": [1]}'), pairs("f", prefix, x="plain text"), pairs("f", prefix, s=" trimmed "),
         pairs("f", prefix, s="two\nlines"), pairs("f", prefix, x="0x1f"),
         pairs("f", prefix, x="1_000"), pairs("f", prefix, x="'a' 'b'"), pairs("f", prefix, x="(1, 'x', [None])"),
         pairs("f", prefix, x="-3"), pairs("f", prefix, x="- 3"), pairs("f", prefix, x="+2.5e3"), pairs("f", prefix, x="'\\x41\\u00e9\\n'"),
         pairs("f", prefix, x="\"a\\'b\""), pairs("f", prefix, x="r'\\n'"), pairs("f", prefix, x="{'k': {'l': ()}}"),
         pairs("f", prefix, x="1, 2"), pairs("f", prefix, x="(1)"), pairs("f", prefix, x="(1,)"), pairs("f", prefix, x="{1: 2}"),
         pairs("f", prefix, x="[1, 2,]"), pairs("f", prefix, x="[1 2]"), pairs("f", prefix, x="'open"), pairs("f", prefix, x="__import__('os')"),
         pairs("f", prefix, x="'''a\nb'''"), pairs("f", prefix, x="0b101"), pairs("f", prefix, x="0o17"), pairs("f", prefix, x=".5"),
         pairs("f", prefix, x="5."), pairs("f", prefix, x="1__0"), pairs("f", prefix, x="True and False"), pairs("f", prefix, x="''"),
         pairs("unknown_tool", prefix, x="1"))
    differs(parser, pairs("f", prefix, x="1e999"), [call("f", x="1e999")], "no infinity in JSON")
    differs(parser, pairs("f", prefix, x="NaN"), [call("f", x="NaN")], "no NaN in JSON")
    differs(parser, pairs("f", prefix, x="{1, 2}"), [call("f", x=[1, 2])], "sets are arrays, and not JSON in Python")
for parser in ("glm47", "laguna"):
    same(parser, "f", "f\n", 'f\n{"a": 1}', 'f {"a": 1}', "f {'a': 1}", "f i=1 s=2", 'f x="a b" y=c', "f x='a b' y=\"c\\\"d\"",
         '{"name": "f", "arguments": {"i": "5", "s": "6"}}', '{"name": "f", "arguments": null}',
         '{"function": "f", "arguments": {"a": 1}}', '{"tool": {"name": "f", "arguments": {"a": 1}}}',
         '[{"name": "f", "arguments": {"a": 1}}]', '{"name": "f", "arguments": "{\\"i\\": 1}"}',
         '{"name": {"name": "f", "arguments": {"a": 1}}, "arguments": null}')
    differs(parser, "", None, "a name must be there")
    differs(parser, "f some words", None, "free text is no call")
    differs(parser, '{"a": 1}', None, "an object without a name is no call")
same("longcat", '{"name": "f", "arguments": {"a": 1}}')
differs("longcat", "f", [call("f")], "a name without arguments")

# ---- minimax_m2


def invoke(name='"f"', q='"', **params):
    return f"\n<invoke name={name}>\n" + "".join(f"<parameter name={q}{k}{q}>{v}</parameter>\n" for k, v in params.items()) + "</invoke>\n"


same("minimax_m2",
     invoke(), invoke(s="x"), invoke(s="5"), invoke("f", "", i="5"), invoke("'f'", "'", s=" trimmed \n"), invoke(i="5"), invoke(i="x"),
     invoke(n="5.0"), invoke(n="1.5"), invoke(b="yes"), invoke(b="0"), invoke(b="maybe"), invoke(o='{"a": 1}'), invoke(o="{'a': 1}"),
     invoke(a="[1, 2]"), invoke(a="x"), invoke(unknown="5"), invoke(unknown="true"), invoke(en="x"), invoke(eni="2"), invoke(of="5"),
     invoke(of="x"), invoke(**{"in": "5"}), invoke(**{"in": "null"}), invoke(**{"in": "none"}), invoke(oo="[1]"), invoke(oo="nil"),
     invoke(i="1_000"), invoke(i="+5"), invoke(i="5.0"), invoke(s="two\nlines"), invoke(i="null"), invoke(sn="null"), invoke(sn="x"),
     invoke(s="a") + invoke('"g"'), "nothing", "<invoke name=\"f\">", invoke('"nobody"', x="1"), invoke(s="héllo"))
differs("minimax_m2", invoke(s="null"), [call("f", s="null")], "null only where it is allowed or text is not")
differs("minimax_m2", invoke(unknown="null"), [call("f", unknown="null")], "null only where it is allowed or text is not")
differs("minimax_m2", invoke(n="1e999"), [call("f", n="1e999")], "no infinity in JSON")

# ---- kimi_k2


def kimi(*calls):
    return "".join(f"<|tool_call_begin|>{i}<|tool_call_argument_begin|>{a}<|tool_call_end|>" for i, a in calls)


same("kimi_k2",
     kimi(("functions.f:0", '{"a":1}')), kimi(("f:12", "{}")), kimi(("functions.f:0", "{}"), ("functions.g:1", '{"x": "y"}')),
     kimi((" functions.a.b:3 ", '{"a": {"b": []}}')), 'functions.f:0<|tool_call_argument_begin|>{"a":1}', "nothing",
     kimi(("functions.f:0", ' {"a": 1} \n')))
differs("kimi_k2", kimi(("functions.f:0", "{'a': 1}")), None, "bad JSON is refused")
differs("kimi_k2", kimi(("functions.f:0", "words")), None, "bad JSON is refused")
differs("kimi_k2", kimi(("functions.f", '{"a":1}')), [call("f", a=1)], "a header without index")

# ---- mistral

same("mistral",
     'f[ARGS]{"a":1}', 'f [ARGS] {"a": {"b": [1]}}', 'f[ARGS]{"a":1}g[ARGS]{}', '[{"name": "f", "arguments": {"a": 1}}]',
     '[{"name": "f", "arguments": {"a": 1}, "id": "abc123xyz"}, {"name": "g", "arguments": {}}]', "get-weather[ARGS]{}",
     '[{"name": "f", "arguments": "{\\"a\\": 1}"}]', 'f[ARGS]{"a":', "words", "f", '[{"arguments": {}}]', 'f[ARGS]{"s": "}[ARGS]"}',
     '[{"name": "f"}]')
differs("mistral", 'my.tool[ARGS]{"a":1}', [call("my.tool", a=1)], "names with dots")
differs("mistral", 'f[CALL_ID]abc123xyz[ARGS]{"a":1}', [call("f", "abc123xyz", a=1)], "ids")
differs("mistral", 'f[ARGS]{"s":"[TOOL_CALLS]"}[TOOL_CALLS]g[ARGS]{} trailing', None, "nothing may follow")
same("mistral", 'f[ARGS]{"s":"[TOOL_CALLS]"}[TOOL_CALLS]g[ARGS]{}')
differs("mistral", 'f[ARGS][1]', None, "arguments must be an object")

# ---- pythonic

same("pythonic",
     '[f(city="Paris", n=2)]', "[f()]", "[f(a=1), g(b=2)]", "[f(ids=[1, 2], opt={'k': (1, 2)})]", '[f(s="a, b [c] (d)")]',
     '[f(s="1")]', "[f(b=True, n=None, x=-1.5)]", '[f(o={"a": true, "b": null})]', "[a.b(x=1)]", "[f(s='it\\'s')]", '[f(s="\\u00e9\\n")]',
     "text [f(a=1)]", "[f(a=1", "nothing", "[f(city=Paris)]", "[f(a=[1, [2, {'x': []}]],)]", '[f(s="a" "b")]', "[f(a=0x10)]")
differs("pythonic", "[f(1)]", None, "an argument without a name is not dropped but refused")
differs("pythonic", "f(a=1)", [call("f", a=1)], "the brackets may be missing")

# ---- minicpm5


def mini(name='"f"', end="</function>", **params):
    return f"{name}>" + "".join(f'<param name="{k}">{v}</param>' for k, v in params.items()) + end


same("minicpm5",
     mini(), mini(s="x"), mini(s="5"), mini(i="5"), mini(i="x"), mini(b="true"), mini(o='{"a": 1}'), mini(s=" trimmed "), mini(s=""),
     mini(s="<![CDATA[a < b\n]]>"), mini(s=" <![CDATA[ x ]]> "), mini(unknown="5"), mini("f", s="x"), mini("'f'", s="x"), mini(n="2.0"),
     mini(end="", s="x"), mini(i="<![CDATA[7]]>"), "", mini(s="<b>bold</b>"))
differs("minicpm5", mini(s="a &lt; b &amp;&amp; c &quot;d&quot; &amp;lt;"), [call("f", s='a < b && c "d" &lt;')], "entities")
differs("minicpm5", mini(s="<![CDATA[</param>]]>"), [call("f", s="</param>")], "CDATA hides a closing tag")
differs("minicpm5", mini(s="null"), [call("f", s="null")], "null only where it is allowed or text is not")

# ---- muse_spark


def muse(name="f", **params):
    return f'\n<atem:invoke name="{name}">\n' + "".join(
        f'<atem:parameter name="{k}">{v}</atem:parameter>\n' for k, v in params.items()) + "</atem:invoke>\n"


same("muse_spark", muse(), muse(s="x"), muse(s="5"), muse(x='{"a": [1]}'), muse(x=" words "), muse(a="1") + muse("g"), "nothing",
     muse(x='"quoted"'))

# ---- kimi_k3


def k3(name="f", *args, attrs=' index="1"'):
    body = "".join(f"<|open|>argument {a}<|sep|>{v}<|close|>argument<|sep|>\n" for a, v in args)
    return f'\n<|open|>call tool="{name}"{attrs}<|sep|>\n{body}<|close|>call<|sep|>\n'


def k3_json(text, name="f"):
    return f'<|open|>call tool="{name}"<|sep|><|open|>json type="object"<|sep|>{text}<|close|>json<|sep|><|close|>call<|sep|>'


same("kimi_k3", k3(), k3("f", ('key="s" type="string"', "Tokyo")), k3("f", ('key="s" type="string"', "5")), k3("f", ('key="s"', "5")),
     k3("f", ('key="i" type="integer"', "5")), k3("f", ('key="n" type="number"', "1.5")), k3("f", ('key="b" type="boolean"', "true")),
     k3("f", ('key="o" type="object"', '{"a": [1, null]}')), k3("f", ('key="a" type="array"', "not json")), k3("f", ('type="string" key="s"', " two\nlines ")),
     k3("f", ('key="a&quot;b&amp;quot;" type="string"', "x")), k3("f", ('key="s" type="string"', "a")) + k3("g"), k3_json('{"a": 1}'), k3_json("{}", "g"),
     k3_json("[1]"), k3_json("{"), k3_json("5"), "nothing", "", '<|open|>call tool="f"<|sep|>', '<|open|>call index="1"<|sep|><|close|>call<|sep|>',
     k3("f", ('type="string"', "no key")), k3("f", ('key="s" type="string"', "h\u00e9llo <b> & \"q\"")), k3("my-tool.x", attrs=""), k3(attrs=' notatool="g"'),
     k3("f", ('key="s" type="string"', "")), k3("f", ('xkey="z" key="s"', "v")), k3("f", ('key="x" type="null"', "null")))
differs("kimi_k3", k3("f", ('key="n" type="number"', "NaN")), [call("f", n="NaN")], "no NaN in JSON")
differs("kimi_k3", k3("f", ('key="s" type="string"', "a")) + k3("g", ('type="string"', "no key")), None,
        "a call that does not parse is not dropped: the block is shown")

# ---- which family a template belongs to

MARKS = ["<minimax:tool_call>", "<|tool_call>", "<tool_call|>", "<start_function_call>", "<longcat_tool_call>", "<arg_key>",
         "<|tool_list_start|>", "<|tool_call_start|>", "<tool_call>\\n<function=", "<tool_call>\n<function=",
         "<|tool_calls_section_begin|>", '<function name="', '<param name="', "[TOOL_CALLS]", "<atem:function_calls>", "<tool_call>",
         "tool_call.name", "nothing"]


class Tokenizer:
    def __init__(self, template):
        self.chat_template = template

    def get_vocab(self):
        return {}


def families():
    texts = MARKS + [a + " " + b for a in MARKS for b in MARKS if a != b]
    return {t: tokenizer_utils._infer_tool_parser(Tokenizer(t)) for t in texts}


# ---- the marker machine: the text of each state, fed one character at a time


def machine():
    from mlx_lm.generate import TextStateMachine
    rng = random.Random(11)
    out = []
    for think in (("<think>", "</think>"), ("<|channel>thought", "<channel|>")):
        call = '<tool_call>{"name": "f", "arguments": {"x": "<think>"}}</tool_call>'
        bits = [think[0], think[1], call, "a", "b ", "\n", "<", "</", think[0][:-1], think[1][:-1], "<tool_", "é", ">", "<|"]
        edges = {"normal": [(think[0], "reasoning"), ("<tool_call>", "tool")],
                 "reasoning": [(think[1], "normal"), ("<tool_call>", "tool")], "tool": [("</tool_call>", "normal")]}
        for _ in range(150):
            text = "".join(rng.choice(bits) for _ in range(rng.randrange(1, 14)))
            start = rng.choice(["normal", "reasoning"])
            state = TextStateMachine(edges).make_state(start)
            said = {"normal": "", "reasoning": "", "tool": ""}
            for c in text:
                state, segments = TextStateMachine.split(state, c)
                for name, piece in segments:
                    said[name] += piece
            state, piece, name = TextStateMachine.flush(state)
            said[name] += piece
            out.append({"text": text, "start": start, "think": think, "normal": said["normal"], "reasoning": said["reasoning"]})
    return out


def write(name, value):
    with open(os.path.join(HERE, name), "w") as f:
        json.dump(value, f, ensure_ascii=True, indent=0, separators=(",", ":"))
        f.write("\n")


shared = {"made_by": f"make_tools.py, mlx-lm {mlx_lm.__version__}", "tools": TOOLS,
          "cases": [{k: v for k, v in c.items() if k != "tools"} for c in cases]}
write("tools.json", shared)
write("markers.json", {"made_by": shared["made_by"], "cases": machine()})
write("tool_families.json", {"made_by": shared["made_by"], "families": families()})
print(len(cases), "cases,", sum("why" in c for c in cases), "of them differ on purpose")
