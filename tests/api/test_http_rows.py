"""The HTTP layer, property by property (docs/http.md), on the scripted server."""
import json
import socket
import time

import httpx
import pytest

ASK = {"messages": [{"role": "user", "content": "<|say|>hello<|said|>"}], "temperature": 0}
CHAT = "/v1/chat/completions"


def raw(server, payload, seconds=20):
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as s:
        s.sendall(payload)
        got = b""
        while piece := s.recv(65536):
            got += piece
    return got


@pytest.fixture(scope="module")
def http(scripted):
    with httpx.Client(base_url=scripted.url, timeout=60) as c:
        yield c


def test_keep_alive_and_no_delay(scripted):
    """One connection answers many requests, streams included."""
    with socket.create_connection(("127.0.0.1", scripted.port), timeout=20) as s:
        f = s.makefile("rb")
        for stream in (False, True, False):
            data = json.dumps({**ASK, "stream": stream}).encode()
            s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            assert f.readline() == b"HTTP/1.1 200 OK\r\n"
            headers = dict(line.decode().rstrip().lower().split(": ", 1) for line in iter(f.readline, b"\r\n"))
            if stream:
                assert headers["transfer-encoding"] == "chunked"
                while size := int(f.readline(), 16):
                    f.read(size + 2)
                f.readline()
            else:
                assert json.loads(f.read(int(headers["content-length"])))["choices"]


def test_one_write_for_each_event(scripted):
    """Every chunk of a stream's coding is one whole event."""
    got = raw(scripted, f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: "
              f"{len(json.dumps({**ASK, 'stream': True}))}\r\n\r\n{json.dumps({**ASK, 'stream': True})}".encode())
    body = got.split(b"\r\n\r\n", 1)[1]
    while body != b"0\r\n\r\n":
        size, body = body.split(b"\r\n", 1)
        chunk, body = body[:int(size, 16)], body[int(size, 16) + 2:]
        assert chunk.endswith(b"\n\n") and chunk.count(b"\n\n") == 1


def test_expect_continue(scripted):
    data = json.dumps(ASK).encode()
    with socket.create_connection(("127.0.0.1", scripted.port), timeout=20) as s:
        s.sendall(f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nExpect: 100-continue\r\n"
                  f"Content-Length: {len(data)}\r\n\r\n".encode())
        assert s.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        s.sendall(data)
        assert b"HTTP/1.1 200 OK" in s.recv(1000)
    big = raw(scripted, f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: "
              "999999999\r\n\r\n".encode())
    assert big.startswith(b"HTTP/1.1 413") and b"100 Continue" not in big


@pytest.mark.parametrize("double", ["Content-Length: 2\r\nContent-Length: 3", "Content-Length: 2\r\nHost: evil.example"])
def test_two_headers_where_one_counts(scripted, double):
    """Which of the two a proxy believed is not known: refused, and the connection ends."""
    got = raw(scripted, f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\n{double}\r\n\r\n{{}}".encode())
    assert got.startswith(b"HTTP/1.1 400") and b"headers; right would be one" in got


def test_paths(http):
    for path in ("/v1/models?x=1", "/v1/models/", "/v1/mod%65ls", "/health/"):
        assert http.get(path).status_code == 200
    for path in ("/v1/models//", "/v1x", "/V1/models"):
        assert http.get(path).status_code in (200, 404)
    for path in ("/", "/v1", "/health", "/stats", "/metrics", "/props", "/slots", "/openapi.json", "/v1/models"):
        head, get = http.head(path), http.get(path)
        assert head.status_code == get.status_code == 200 and head.content == b""
        assert head.headers["content-type"] == get.headers["content-type"]
    for path in ("/v1/models", CHAT, "/admin/cache/flush"):
        reply = http.put(path)
        assert reply.status_code == 405 and "OPTIONS" in reply.headers["allow"]


@pytest.mark.parametrize("body,status", [
    (b"", 400), (b"[]", 400), (b'"x"', 400), (b'{"a":"\xff"}', 400), (b"{" * 600, 400),
    (b'{"messages":' + b"[" * 513 + b"]" * 513 + b"}", 400),
    (b'{"temperature":5,"temperature":"x","messages":[]}', 400),
    (b'{"messages":[{"role":"user","content":"\\ud800"}],"max_tokens":1}', 200),
    (b'{"temperature":"x","temperature":0,"messages":[{"role":"user","content":"a"}]}', 200)])
def test_bodies(http, body, status):
    reply = http.post(CHAT, content=body)
    assert reply.status_code == status
    if status == 400:
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        assert reply.headers["x-should-retry"] == "false"


def test_origins(http):
    asked = {"Origin": "http://a", "Access-Control-Request-Headers": "authorization,x-b",
             "Access-Control-Request-Private-Network": "true"}
    reply = http.options("/v1/anything", headers=asked)
    assert reply.status_code == 204 and reply.headers["access-control-allow-origin"] == "*"
    assert reply.headers["access-control-allow-headers"] == "authorization,x-b"
    assert reply.headers["access-control-max-age"] == "600"
    assert "access-control-allow-private-network" not in reply.headers  # only for an origin that is allowed by name
    for path in ("/stats", "/metrics", "/props", "/slots", "/tokenize", "/admin/cache/flush", "/openapi.json"):
        assert not [h for h in http.options(path, headers=asked).headers if h.startswith("access-control")]


def test_admin_wants_json(http):
    assert http.post("/admin/cache/flush").status_code == 415
    assert http.post("/admin/cache/flush", data={"a": "b"}).status_code == 415
    reply = http.post("/admin/cache/flush", json={})
    assert reply.status_code == 200 and reply.json()["durable"] is True


def test_log_lines(start):
    server = start("--api-key", "sesame-key", "--log-level", "DEBUG")
    with httpx.Client(base_url=server.url, headers={"authorization": "Bearer sesame-key"}) as http:
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "metadata": {"u": "data:text/plain,secret"}}
        assert http.post(CHAT, json=body, headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
        assert http.get("/nothing", headers={"x-request-id": "mine-2"}).status_code == 404
    time.sleep(0.2)
    lines = [line for line in server.log.splitlines() if "mine-1 " in line and " INFO " in line]
    assert len(lines) == 1
    for name in ("status=200", "prompt=", "cached=", "completion=3", "queue_ms=", "ttft_ms=", "tok_s=", "finish=length",
                 "lane=", "bytes=", CHAT):
        assert name in lines[0]
    assert "mine-2 - status=404" in server.log
    assert '"max_tokens":3' in server.log  # the body, at DEBUG
    assert "sesame" not in server.log and "secret" not in server.log
