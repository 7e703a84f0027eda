"""What /stats says about memory, against what the kernel says.

The peak of the process (VmHWM) lies within 3 % of the sum of the terms that were used, and under the limit of
--memory-budget.
"""
import re
import resource
import threading

import httpx
import pytest

from conftest import QUERN_MODEL, Server

pytestmark = pytest.mark.skipif(not QUERN_MODEL, reason="no model")

TERMS = ("base_bytes", "weights_bytes", "kv_bytes", "state_bytes", "arena_bytes", "rows_bytes")
TOLERANCE = 0.03


def peak_of(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as f:
        return int(re.search(r"VmHWM:\s+(\d+) kB", f.read())[1]) * 1024


def complete(server, number, n_words, n_new, failures):
    body = {"prompt": f"{number} " + "alpha beta gamma delta " * (n_words // 4), "max_tokens": n_new, "seed": number,
            "temperature": 0.8, "top_p": 0.9, "ignore_eos": True}
    reply = httpx.post(server.url + "/v1/completions", json=body, timeout=300)
    if reply.status_code != 200:
        failures.append(reply.text)


def load(server, n_requests, n_words, n_new):
    """Requests at the same time, each with a prompt of its own."""
    failures = []
    threads = [threading.Thread(target=complete, args=(server, i, n_words, n_new, failures)) for i in range(n_requests)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures


def memory_of(server):
    """The terms, whose sums are right."""
    memory = httpx.get(server.url + "/stats").json()["memory"]
    for part in ("planned", "used"):
        assert sum(memory[part][t] for t in TERMS) == memory[part]["sum_bytes"]
    for term in ("kv_bytes", "state_bytes", "arena_bytes", "rows_bytes"):
        assert memory["used"][term] <= memory["planned"][term], term
    return memory


def check_peak(server):
    memory, peak = memory_of(server), peak_of(server)
    used = memory["used"]["sum_bytes"]
    assert abs(memory["resident_peak_bytes"] - peak) <= 1 << 20
    print(f"measured {peak / 1e6:.1f} MB, terms {used / 1e6:.1f} MB, {100 * (peak / used - 1):+.2f} %")
    assert abs(peak - used) <= TOLERANCE * used, f"{peak} measured, {memory['used']}"
    return memory, peak


@pytest.mark.parametrize("args", [(), ("--response-store", "0")])
def test_an_idle_server_is_the_sum(args):
    """What the server itself takes is in the base, with and without its store."""
    server = Server("--batch", "8", *args)
    try:
        load(server, 1, 8, 4)
        for _ in range(3):
            memory = memory_of(server)
        rest = memory["resident_bytes"] - memory["used"]["sum_bytes"]
        print(f"{rest / 1e6:+.2f} MB in no term")
        assert abs(rest) < 1_000_000
    finally:
        assert server.stop() == 0


def test_peak_is_the_sum():
    server = Server("--batch", "8")
    try:
        before = memory_of(server)["used"]
        assert before["kv_bytes"] == 0 and before["arena_bytes"] < memory_of(server)["planned"]["arena_bytes"]
        load(server, 8, 400, 48)
        check_peak(server)
    finally:
        assert server.stop() == 0


def test_peak_stays_under_the_limit():
    limit = 190_000_000
    server = Server("--batch", "4", "--memory-budget", str(limit / 1e9))
    try:
        load(server, 10, 400, 16) # more than the cache holds
        memory, peak = check_peak(server)
        assert memory["planned"]["sum_bytes"] <= limit and peak <= limit
        assert memory["used"]["kv_bytes"] > 0.9 * memory["planned"]["kv_bytes"]
    finally:
        assert server.stop() == 0


def locked_of(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as f:
        return int(re.search(r"VmLck:\s+(\d+) kB", f.read())[1]) * 1024


@pytest.mark.parametrize("args, env", [(["--force-wire"], {}), ([], {"QUERN_FORCE_WIRE": "1"}), (["--l1", "--force-wire"], {})])
def test_pinned_weights(args, env):
    """In memory from the start where the system allows it, else a warning with both figures."""
    server = Server(*args, env=env)
    try:
        memory = memory_of(server)
        weights = memory["planned"]["weights_bytes"]
        most = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
        if locked_of(server) >= weights:
            assert memory["used"]["weights_bytes"] >= 0.99 * weights
        else:
            assert most < 2 * weights
            assert f"cannot keep {weights / 1e9:.3f} GB in memory" in server.log and "(ulimit -l) is" in server.log
        load(server, 1, 8, 4)
    finally:
        assert server.stop() == 0


def test_weights_are_there_once():
    """Building the panels reads the model's files, and does not keep them."""
    server = Server("--no-panel-cache")
    try:
        used = memory_of(server)["used"]
        assert used["base_bytes"] < used["weights_bytes"] / 2
        assert peak_of(server) < 1.5 * used["weights_bytes"]
    finally:
        assert server.stop() == 0


@pytest.mark.parametrize("args, most, entries", [(("--prompt-cache", "0"), 0, 0), (("--prompt-cache-bytes", "5M"), 5_000_000, None),
                                                 (("--prompt-cache-size", "2", "--prompt-cache", "0.125"), 1 << 27, 2)])
def test_prompt_cache_limits(args, most, entries):
    server = Server("--batch", "2", *args)
    try:
        load(server, 6, 300, 4)
        for _ in range(50):
            stats = httpx.get(server.url + "/stats").json()
            if stats["batch"]["active_rows"] == 0 and stats["batch"]["kv_bytes"] == 0:
                break
        cache = stats["prompt_cache"]
        assert cache["max_bytes"] == most and cache["bytes"] <= most
        assert cache["entries"] <= entries if entries is not None else cache["entries"] > 0
        assert bool(cache["bytes"]) == bool(most)
    finally:
        assert server.stop() == 0
