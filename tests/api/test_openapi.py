"""/openapi.json against the running server: every route, every reply, and requests that schemathesis makes up.

The long form, QUERN_TEST_LONG=1, lets schemathesis run for ten minutes.
"""
import json
import os
import subprocess
import sys

import httpx
import jsonschema_rs
import pytest

from conftest import ROOT, Server

LONG = os.environ.get("QUERN_TEST_LONG") == "1"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@pytest.fixture(scope="module")
def served(tiny):
    one = Server("--model", str(tiny), "--max-tokens", "32")
    yield one
    assert one.process.poll() is None, one.log[-4000:]
    assert one.stop() == 0


@pytest.fixture(scope="module")
def description(served):
    return httpx.get(served.url + "/openapi.json").json()


def operations(description):
    return [(path, method, op) for path, item in description["paths"].items() for method, op in item.items()]


def test_is_the_file(description):
    with open(os.path.join(ROOT, "docs", "openapi.json"), encoding="utf-8") as f:
        assert json.load(f) == description
    jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema",
                                 "$defs": description["components"]["schemas"]})


def test_every_route_is_described(served, description):
    listed = httpx.get(served.url + "/v1").json()["endpoints"]
    described = [f"{method.upper()} {path}" for path, method, _ in operations(description)]
    assert sorted(listed) == sorted(described) and len(set(listed)) == len(listed)


def check(description, op, reply):
    """The reply's status and type are described, and a JSON body fits its schema."""
    said = op["responses"].get(str(reply.status_code))
    assert said, f"{reply.status_code} is not described: {reply.text}"
    kind = reply.headers["content-type"].split(";")[0]
    assert kind in said["content"]
    schema = said["content"][kind]["schema"]
    if kind == "application/json":
        jsonschema_rs.validate({**schema, "components": description["components"]}, reply.json())


def test_replies_fit(served, description):
    with httpx.Client(base_url=served.url, timeout=60) as http:
        for path, method, op in operations(description):
            url = path.replace("{id}", served.model)
            body = op.get("requestBody", {}).get("content", {}).get("application/json", {}).get("example")
            reply = http.request(method, url, json=body)
            assert reply.status_code == 404 if "/responses/" in url and body is None else reply.status_code == 200, url
            check(description, op, reply)
            if method == "post":
                check(description, op, http.post(url, content=b"{"))
                check(description, op, http.post(url, content=b"[]", headers={"Content-Type": "application/json"}))
                check(description, op, http.post(url, json={}))
            if body and "text/event-stream" in op["responses"]["200"]["content"]:
                check(description, op, http.post(url, json={**body, "stream": True}))


def schemathesis(served, tmp_path, *options):
    program = os.path.join(os.path.dirname(sys.executable), "schemathesis")
    done = subprocess.run([program, "run", served.url + "/openapi.json", "--url", served.url, "--checks", CHECKS,
                           "--continue-on-failure", "--request-timeout", "60", "--no-color", *options], cwd=tmp_path,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:]


def test_schemathesis(served, tmp_path):
    schemathesis(served, tmp_path, "--max-examples", "5", "--phases", "examples,coverage,fuzzing", "--seed", "1")


@pytest.mark.skipif(not LONG, reason="ten minutes: QUERN_TEST_LONG=1")
def test_schemathesis_long(served, tmp_path):
    schemathesis(served, tmp_path, "--max-examples", "100000", "--phases", "fuzzing", "--max-time", "600")
