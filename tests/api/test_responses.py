"""/v1/responses with the official OpenAI client: a real model, and a scripted one for every order of events."""
import json
import random
import signal
import time

import httpx
import openai
import pytest
from openai.types.responses import Response, ResponseItem, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from sse import check_model, events

EVENT, RESPONSE = TypeAdapter(ResponseStreamEvent), TypeAdapter(Response)
TOOL = {"type": "function", "name": "get_weather", "description": "The weather.", "strict": False,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
PATCH = {"type": "custom", "name": "patch", "description": "Free text."}


def say(*replies):
    return "".join(f"<|say|>{r}<|said|>" for r in replies)


@pytest.fixture(scope="module")
def http(scripted):
    with httpx.Client(base_url=scripted.url, timeout=60) as c:
        yield c


def body(*replies, **kwargs):
    return {"model": "any", "input": say(*replies), **kwargs}


# ---- the grammar of a stream ----

ADDED = {"message": ("content", "response.content_part.added"),
         "reasoning": ("summary", "response.reasoning_summary_part.added")}


class Rebuild:
    """The response that a stream's events add up to, with every rule of their order checked."""

    def __init__(self, stream):
        assert [name for name, _ in stream[:2]] == ["response.created", "response.in_progress"]
        self.items, self.open = [], None
        for i, (name, e) in enumerate(stream):
            check_model(EVENT, e)
            assert e["sequence_number"] == i
            if name == "response.in_progress" or i == 0:
                assert e["response"]["status"] == "in_progress" and e["response"]["output"] == []
            elif i < len(stream) - 1:
                self.take(name, e)
        assert self.open is None
        self.final_name, self.final = stream[-1][0], stream[-1][1]["response"]
        assert self.final["output"] == self.items
        assert self.final_name == "response." + self.final["status"]
        ids = [item["id"] for item in self.items]
        assert len(set(ids)) == len(ids) and {e["response"]["id"] for _, e in stream[:2]} == {self.final["id"]}

    def take(self, name, e):
        if name == "response.output_item.added":
            assert self.open is None and e["output_index"] == len(self.items)
            self.open, self.text, self.after = e["item"], "", []
            assert self.open["status"] == "in_progress"
            self.items.append(self.open)
            return
        assert e["output_index"] == len(self.items) - 1
        self.after.append(name)
        if name == "response.output_item.done":
            assert e["item"]["id"] == self.open["id"] and e["item"]["type"] == self.open["type"]
            self.items[-1] = e["item"]
            self.check(e["item"])
            self.open = None
            return
        assert e["item_id"] == self.open["id"]
        assert e.get("content_index", 0) == 0 and e.get("summary_index", 0) == 0
        if name.endswith(".delta"):
            self.text += e["delta"]
        elif name.endswith("part.added"):
            assert e["part"]["text"] == ""
        elif name.endswith("part.done"):
            assert e["part"]["text"] == self.text
        else:
            assert e[{"response.function_call_arguments.done": "arguments",
                      "response.custom_tool_call_input.done": "input"}.get(name, "text")] == self.text

    def check(self, item):
        """The events of an item, in their order, and what they say about its text."""
        kind = {"message": "response.output_text", "reasoning": "response.reasoning_summary_text",
                "function_call": "response.function_call_arguments",
                "custom_tool_call": "response.custom_tool_call_input"}[item["type"]]
        deltas = [n for n in self.after if n.endswith(".delta")]
        assert set(deltas) <= {kind + ".delta"}
        part = {"message": "response.content_part", "reasoning": "response.reasoning_summary_part"}.get(item["type"])
        if part:
            assert self.after == [part + ".added", *deltas, kind + ".done", part + ".done", "response.output_item.done"]
            assert item["content" if item["type"] == "message" else "summary"][0]["text"] == self.text
        else:
            assert self.after == [*deltas, kind + ".done", "response.output_item.done"]
            assert item["input" if item["type"] == "custom_tool_call" else "arguments"] == self.text


def bare(response):
    """A response without ids, times and what the prefix cache held."""
    r = json.loads(json.dumps(response))
    for item in r["output"]:
        item.pop("id"), item.pop("call_id", None)
    for key in ("id", "created_at"):
        r.pop(key)
    r["usage"].pop("input_tokens_details")
    return r


REPLIES = {
    "text": ("Hello.", ["message"]),
    "empty": ("", []),
    "reasoning": ("<think>hm\n</think>\n\nHi €", ["reasoning", "message"]),
    "only reasoning": ("<think>hm", ["reasoning"]),
    "call": (CALL, ["function_call"]),
    "calls": (f"<think>a</think>Let me look.{CALL}{CALL}", ["reasoning", "message", "function_call", "function_call"]),
    "text behind a call": (f"a{CALL}b", ["message", "function_call", "message"]),
    "reasoning again": (f"<think>a</think>b<think>c</think>{CALL}", ["reasoning", "message", "reasoning",
                                                                   "function_call"]),
    "custom": ('<tool_call>{"name": "patch", "arguments": {"input": "*** Begin\\n"}}</tool_call>',
               ["custom_tool_call"]),
    "broken call": ('<tool_call>{"name": </tool_call>', ["message"]),
}


@pytest.mark.parametrize("name", REPLIES)
def test_stream_and_reply(http, name):
    text, kinds = REPLIES[name]
    request = body(text, tools=[TOOL, PATCH])
    whole = http.post("/v1/responses", json=request)
    assert whole.status_code == 200, whole.text
    response = whole.json()
    check_model(RESPONSE, response)
    assert [i["type"] for i in response["output"]] == kinds and response["status"] == "completed"
    assert response["id"].startswith("resp_") and len(response["id"]) == 29
    assert bare(Rebuild(events(http, "/v1/responses", request)).final) == bare(response)
    if name == "custom":
        assert response["output"][0]["input"] == "*** Begin\n"


def test_random_replies(http):
    """Every mix of items: a stream adds up to the reply."""
    rng = random.Random(2)
    bits = ["<think>x y</think>", "<think>", "</think>", CALL, "text ", "\n\n", "<tool_", "é€😀", "<", "{}", "stop"]
    for _ in range(60):
        text = "".join(rng.choice(bits) for _ in range(rng.randrange(8)))
        request = body(text, tools=[TOOL], stop="stop", max_output_tokens=rng.choice([1, 5, 40, 1000]))
        response = http.post("/v1/responses", json=request).json()
        check_model(RESPONSE, response)
        assert bare(Rebuild(events(http, "/v1/responses", request)).final) == bare(response), text


def test_cut_by_length(http):
    r = http.post("/v1/responses", json=body("<think>a</think>bcdef", max_output_tokens=5)).json()
    assert r["status"] == "incomplete" and r["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [i["status"] for i in r["output"]] == ["completed", "incomplete"]
    assert r["usage"]["output_tokens"] == 5 and r["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    assert r["usage"]["total_tokens"] == r["usage"]["input_tokens"] + 5
    assert Rebuild(events(http, "/v1/responses", body("abc", max_output_tokens=2))).final_name == "response.incomplete"


def test_echo(http):
    """A response repeats what was asked for."""
    asked = {"instructions": "Be brief.", "max_output_tokens": 50, "temperature": 0.25, "top_p": 0.5, "tools": [TOOL],
             "tool_choice": "none", "parallel_tool_calls": False, "metadata": {"a": "b"}, "user": "u", "store": False,
             "reasoning": {"effort": "low"}, "text": {"format": {"type": "text"}, "verbosity": "low"}}
    r = http.post("/v1/responses", json=body("x", **asked)).json()
    check_model(RESPONSE, r)
    for key, value in asked.items():
        assert r[key] == ({"effort": "low", "summary": None} if key == "reasoning" else value), key
    assert r["truncation"] == "disabled" and r["error"] is None and r["object"] == "response"


def test_logprobs(http):
    request = body("<think>a</think>bc", top_logprobs=2, include=["message.output_text.logprobs"])
    r = http.post("/v1/responses", json=request).json()
    check_model(RESPONSE, r)
    said = r["output"][1]["content"][0]["logprobs"]
    assert [p["token"] for p in said][-2:] == ["b", "c"] and all(len(p["top_logprobs"]) == 2 for p in said)
    stream = events(http, "/v1/responses", request)
    assert Rebuild(stream).final["output"][1]["content"] == r["output"][1]["content"]
    deltas = [p for name, e in stream if name == "response.output_text.delta" for p in e["logprobs"]]
    assert deltas == said
    assert http.post("/v1/responses", json=body("a", top_logprobs=2)).json()["output"][0]["content"][0]["logprobs"] == []


def test_schema_is_asked_for_in_words(http):
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    reply = http.post("/v1/responses", json=body("{}", text={"format": schema}))
    assert reply.status_code == 200 and "grammar not enforced" in reply.headers["warning"]
    check_model(RESPONSE, reply.json())
    none = http.post("/v1/responses", json=body("{}", text={"format": {**schema, "schema": 7, "strict": True}}))
    assert none.status_code == 400 and none.json()["error"]["code"] == "unsupported_schema"


class Place(BaseModel):
    city: str


def test_client_parses(scripted):
    """parse() and the stream helper send strict: true, always."""
    client = scripted.client()
    request = body('<think>hm</think>{"city": "Paris"}', text_format=Place)
    raw = client.responses.with_raw_response.parse(**request)
    assert raw.headers["warning"].startswith("grammar not enforced")
    assert raw.parse().output_parsed == Place(city="Paris")
    with client.responses.stream(**request) as stream:
        assert stream.until_done().get_final_response().output_parsed == Place(city="Paris")


# ---- the store ----

def test_chain_of_three(scripted):
    client = scripted.client()
    first = client.responses.create(model="any", instructions="Obey.", input=say("one", "two", "three"))
    second = client.responses.create(model="any", input="and?", previous_response_id=first.id)
    with client.responses.stream(model="any", input="and?", previous_response_id=second.id) as stream:
        third = stream.until_done().get_final_response()
    assert [r.output_text for r in (first, second, third)] == ["one", "two", "three"]
    assert third.instructions == "Obey." and third.previous_response_id == second.id
    assert second.usage.input_tokens_details.cached_tokens > 0
    assert third.usage.input_tokens > second.usage.input_tokens > first.usage.input_tokens
    new = client.responses.create(model="any", instructions="New.", input="and?", previous_response_id=second.id)
    assert new.instructions == "New." and new.output_text == "three"
    assert client.responses.retrieve(second.id).output == second.output
    client.responses.delete(third.id)
    for call in (client.responses.retrieve, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            call(third.id)
    assert client.responses.retrieve(second.id).id == second.id


def test_chain_with_tools(scripted):
    client = scripted.client()
    first = client.responses.create(model="any", tools=[TOOL], input=say(f"<think>a</think>Looking.{CALL}", "It rains."))
    call = first.output[-1]
    assert call.type == "function_call" and json.loads(call.arguments) == {"city": "Paris"}
    answer = [{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}]
    second = client.responses.create(model="any", tools=[TOOL], input=answer, previous_response_id=first.id)
    assert second.output_text == "It rains."
    # the same without the store
    history = [{"role": "user", "content": say(f"<think>a</think>Looking.{CALL}", "It rains.")},
               *(o.model_dump() for o in first.output if o.type != "reasoning"), *answer]
    again = client.responses.create(model="any", tools=[TOOL], input=history, store=False)
    assert again.output_text == "It rains." and again.usage.input_tokens == second.usage.input_tokens


def test_input_items(scripted):
    client = scripted.client()
    first = client.responses.create(model="any", tools=[TOOL], input=say(f"<think>a</think>Looking.{CALL}", "Rain."))
    call = first.output[-1]
    second = client.responses.create(model="any", tools=[TOOL], previous_response_id=first.id, input=[
        {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
        {"role": "assistant", "content": "Hm."}, {"id": "mine", "role": "user", "content": "And?", "type": "message"}])
    everything = list(client.responses.input_items.list(second.id, order="asc"))
    assert [i.type for i in everything] == ["message", "message", "function_call", "function_call_output", "message",
                                            "message"]
    for item in everything:
        check_model(TypeAdapter(ResponseItem), item.model_dump(exclude_unset=True))
    question, looking, asked, answer, hm, mine = everything
    assert question.role == "user" and question.content[0].text.startswith("<|say|>") and question.status == "completed"
    assert looking == first.output[1].model_copy() and asked.id == call.id and asked.arguments == call.arguments
    assert answer.call_id == call.call_id and answer.output == "rain"
    assert hm.content[0].type == "output_text" and hm.content[0].text == "Hm." and mine.id == "mine"
    ids = [i.id for i in everything]
    assert len(set(ids)) == 6 and ids == [i.id for i in client.responses.input_items.list(second.id, order="asc")]
    assert [i.id for i in client.responses.input_items.list(second.id)] == ids[::-1]
    # pages: the client follows has_more with after=last_id
    for n in (1, 2, 6, 100):
        assert [i.id for i in client.responses.input_items.list(second.id, limit=n)] == ids[::-1]
    page = client.responses.input_items.list(second.id, order="asc", limit=2, after=ids[0])
    assert [i.id for i in page.data] == ids[1:3] and page.has_more
    raw = httpx.get(f"{client.base_url}responses/{second.id}/input_items?order=asc&limit=4&after={ids[1]}").json()
    assert list(raw) == ["object", "first_id", "last_id", "has_more", "data"] and raw["object"] == "list"
    assert (raw["first_id"], raw["last_id"], raw["has_more"]) == (ids[2], ids[5], False)
    end = httpx.get(f"{client.base_url}responses/{second.id}/input_items?after={ids[0]}").json()
    assert (end["data"], end["first_id"], end["last_id"], end["has_more"]) == ([], None, None, False)


def test_input_items_refused(scripted):
    client = scripted.client()
    one = client.responses.create(model="any", input=say("a"))
    url = f"{client.base_url}responses/{one.id}"
    for query, param in (("limit=0", "limit"), ("limit=101", "limit"), ("limit=x", "limit"), ("limit=", "limit"),
                         ("order=up", "order"), ("after=none", "after")):
        reply = httpx.get(f"{url}/input_items?{query}")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), query
    assert httpx.get(f"{url}/input_items?after=%ff").status_code == 200
    for path in ("%ff/input_items", "%ffx", "x%C3%A9y/input_items", "%C3%A9" * 33, f"{one.id}?stream=" + "%C3%A9" * 9):
        reply = httpx.get(f"{client.base_url}responses/{path}")
        assert reply.status_code in (400, 404) and reply.json()["error"]["message"], path
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list("resp_none")
    for method in ("DELETE", "POST"):
        reply = httpx.request(method, f"{url}/input_items")
        assert (reply.status_code, reply.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert httpx.get(f"{client.base_url}responses/input_items").status_code == 404
    # the events of a stored response are not kept
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.retrieve(one.id, stream=True)
    assert refused.value.param == "stream" and "not supported yet" in refused.value.message
    assert httpx.get(f"{url}?stream=false").json()["id"] == one.id


def test_not_stored(scripted):
    client = scripted.client()
    loose = client.responses.create(model="any", input=say("a"), store=False)
    for id in (loose.id, "resp_none"):
        with pytest.raises(openai.NotFoundError) as none:
            client.responses.create(model="any", input="x", previous_response_id=id)
        assert none.value.param == "previous_response_id" and id in none.value.message
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(id)


def test_expiry_and_eviction(start_scripted):
    client = start_scripted("--response-ttl-ms", "700").client()
    first = client.responses.create(model="any", input=say("a"))
    assert client.responses.retrieve(first.id).output_text == "a"
    time.sleep(0.8)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="any", input="x", previous_response_id=first.id)
    client = start_scripted("--response-bytes", "4000").client()
    ids = [client.responses.create(model="any", input=say("a")).id for _ in range(12)]

    def there(id):
        try:
            return bool(client.responses.retrieve(id))
        except openai.NotFoundError:
            return False
    stats = httpx.get(str(client.base_url).replace("/v1/", "/stats")).json()["response_store"]
    assert 0 < stats["entries"] < 12 and 0 < stats["bytes"] <= stats["max_bytes"] == 4000
    kept = [there(id) for id in ids]
    assert sum(kept) == stats["entries"]
    assert not kept[0] and kept[-1] and kept == sorted(kept)
    big = client.responses.create(model="any", input=say("a") + "x" * 5000)
    assert big.output_text == "a" and not there(big.id) and there(ids[-1])


# ---- counting, errors ----

def test_input_tokens_is_usage(http):
    for extra in ({}, {"instructions": "Be brief."}, {"tools": [TOOL]}):
        request = body("a", **extra)
        counted = http.post("/v1/responses/input_tokens", json=request).json()
        assert counted == {"object": "response.input_tokens",
                           "input_tokens": http.post("/v1/responses", json=request).json()["usage"]["input_tokens"]}
    chat = {"messages": [{"role": "user", "content": say("a")}]}
    counted = http.post("/v1/chat/completions/input_tokens", json=chat).json()
    assert counted["input_tokens"] == http.post("/v1/chat/completions", json=chat).json()["usage"]["prompt_tokens"]


def test_errors(http):
    for request, param in [({}, "input"), (body("x", background=True), "background"),
                           (body("x", conversation="c"), "conversation"), (body("x", prompt={"id": "p"}), "prompt"),
                           (body("x", temperature="hot"), "temperature"), (body("x", store=1), "store"),
                           (body("x", previous_response_id=7), "previous_response_id")]:
        reply = http.post("/v1/responses", json=request)
        assert reply.status_code == 400 and reply.json()["error"]["param"] == param, reply.text
    reply = http.put("/v1/responses/resp_x")
    assert reply.status_code == 405 and reply.headers["allow"] == "GET, HEAD, DELETE, OPTIONS"


def test_error_in_a_stream(start):
    """The server is told to end while it writes: error, then response.failed, then nothing."""
    one = start(env={"QUERN_SHUTDOWN_TIMEOUT_MS": "1"})
    request = {"input": "Write a long story.", "stream": True, "temperature": 0, "max_output_tokens": 4000}
    seen = []
    with httpx.stream("POST", one.url + "/v1/responses", json=request, timeout=60) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line[6:]))
                if len(seen) == 5: # once: a second signal ends the server at once
                    one.process.send_signal(signal.SIGTERM)
    assert [e["type"] for e in seen[-2:]] == ["error", "response.failed"]
    for i, e in enumerate(seen):
        check_model(EVENT, e)
        assert e["sequence_number"] == i
    assert "shutting down" in seen[-2]["message"] and seen[-1]["response"]["status"] == "failed"
    assert seen[-1]["response"]["error"]["message"] == seen[-2]["message"]


def test_reminders_while_silent(start_scripted):
    slow = start_scripted("--step-us", "150000", "--ping-ms", "100")
    with httpx.Client(base_url=slow.url, timeout=60) as c:
        stream = events(c, "/v1/responses", body("abc"))
    assert [name for name, _ in stream].count("response.in_progress") > 1
    assert Rebuild(stream).final["output"][0]["content"][0]["text"] == "abc"


# ---- the real model ----

def test_real_model(server):
    client = server.client()
    request = {"model": "any", "max_output_tokens": 24, "temperature": 0, "input": "What is the capital of France?"}
    whole = client.responses.create(**request)
    assert "Paris" in whole.output_text and whole.status == "completed"
    assert whole.usage.output_tokens_details.reasoning_tokens == 0
    with client.responses.stream(**request) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert text == final.output_text == whole.output_text
    more = client.responses.create(**{**request, "input": "And of Italy?"}, previous_response_id=final.id)
    assert more.usage.input_tokens > final.usage.total_tokens - 2
    assert more.usage.input_tokens_details.cached_tokens > 0
