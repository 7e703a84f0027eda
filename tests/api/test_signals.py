"""SIGTERM while many requests run, on the scripted server and on the real program."""
import json
import signal
import threading
import time

import httpx
import pytest


def ask(text, stream):
    return {"messages": [{"role": "user", "content": f"<|say|>{text}<|said|>"}], "stream": stream, "temperature": 0}


def post(url, body, out):
    """Append (status, text) of one reply; ("none", why) without one."""
    try:
        reply = httpx.post(url + "/v1/chat/completions", json=body, timeout=60)
        out.append((reply.status_code, reply.text))
    except httpx.HTTPError as why:
        out.append(("none", repr(why)))


def wait_for_rows(server, n):
    """Until n requests run or wait."""
    for _ in range(600):
        batch = httpx.get(server.url + "/stats").json()["batch"]
        if batch["active_rows"] + batch["pending_rows"] >= n:
            return
        time.sleep(0.02)
    raise AssertionError(f"{n} requests never ran at once: {batch}")


def run_many(server, n, text, number):
    """Start n requests, streamed and not, send the signal; returns the replies, status and seconds of the process."""
    out, threads = [], []
    for i in range(n):
        threads.append(threading.Thread(target=post, args=(server.url, ask(text, i % 2 == 0), out)))
        threads[-1].start()
    wait_for_rows(server, n)
    started = time.monotonic()
    server.process.send_signal(number)
    status = server.process.wait(timeout=60)
    seconds = time.monotonic() - started
    for t in threads:
        t.join()
    return out, status, seconds


def is_whole(text, want):
    if text.startswith("{"):
        return json.loads(text)["choices"][0]["message"]["content"] == want
    data = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    if data[-1] != "[DONE]":
        return False
    chunks = [json.loads(d) for d in data[:-1]]
    return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks) == want


def test_running_requests_finish(start_scripted):
    server = start_scripted("--step-us", "10000", "--batch", "32")
    out, status, seconds = run_many(server, 24, "word " * 60, signal.SIGTERM)
    assert status == 0 and seconds < 20
    assert len(out) == 24 and all(code == 200 and is_whole(text, "word " * 60) for code, text in out), out[:3]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_late_requests_end_with_an_error(start, number):
    """The time is over: streams end with an error frame, the others with a 503; the status is 0 all the same."""
    server = start("--batch", "4", env={"QUERN_SHUTDOWN_TIMEOUT_MS": "50"})
    body = {"messages": [{"role": "user", "content": "Write a long story."}], "temperature": 1, "max_tokens": 3000,
            "ignore_eos": True}
    out = []
    threads = [threading.Thread(target=post, args=(server.url, {**body, "stream": i % 2 == 0}, out)) for i in range(12)]
    for t in threads:
        t.start()
    wait_for_rows(server, 12)
    server.process.send_signal(number)
    assert server.process.wait(timeout=30) == 0
    for t in threads:
        t.join()
    assert len(out) == 12
    for code, text in out:
        if code == 200:
            last = [line for line in text.splitlines() if line][-1]
            error = json.loads(last.removeprefix("data: "))["error"]
        else:
            assert code == 503, (code, text)
            error = json.loads(text)["error"]
        assert error["code"] == "draining"


def test_health_while_draining(start_scripted):
    server = start_scripted("--step-us", "20000")
    out = []
    thread = threading.Thread(target=post, args=(server.url, ask("x" * 80, True), out))
    with httpx.Client(base_url=server.url) as kept:
        assert kept.get("/health").text == '{"status": "ok"}'
        thread.start()
        wait_for_rows(server, 1)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        reply = kept.get("/health")  # the connection is there already; new ones are not taken
        assert reply.status_code == 503 and reply.text == '{"status": "draining"}'
        late = kept.post("/v1/chat/completions", json=ask("y", False))
        assert late.status_code == 503 and late.headers["retry-after"] == "1"
        with pytest.raises(httpx.ConnectError):
            httpx.get(server.url + "/health", timeout=10)
    thread.join()
    assert out[0][0] == 200 and is_whole(out[0][1], "x" * 80)
    assert server.process.wait(timeout=30) == 0


def test_second_signal_ends_at_once(start):
    server = start("--batch", "2")
    out = []
    body = {"messages": [{"role": "user", "content": "Write a long story."}], "max_tokens": 8000, "ignore_eos": True}
    threads = [threading.Thread(target=post, args=(server.url, body, out)) for _ in range(4)]
    for t in threads:
        t.start()
    wait_for_rows(server, 4)
    server.process.send_signal(signal.SIGTERM)
    time.sleep(0.5)
    assert server.process.poll() is None
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=10) == 143 and time.monotonic() - started < 2
    for t in threads:
        t.join()
