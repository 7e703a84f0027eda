"""/v1/embeddings against the hidden states of mlx-lm's model."""
import base64
import struct

import httpx
import numpy as np
import pytest

from conftest import Server

TEXTS = ["The capital of France is Paris.", "Hello!", "Grüße 😀", "one two three " * 40]


@pytest.fixture(scope="module")
def served(tiny):
    one = Server("--model", str(tiny), "--batch", "4")
    yield one
    assert one.stop() == 0


@pytest.fixture(scope="module")
def expected(tiny):
    """Vector and token count of a text, as mlx-lm's model and the tokenizer's own encoding give them."""
    import mlx.core as mx
    from mlx_lm.utils import load_model
    from tokenizers import Tokenizer
    mx.set_default_device(mx.cpu)
    model, _ = load_model(tiny)
    tok = Tokenizer.from_file(str(tiny / "tokenizer.json"))

    def vector(text, n=None):
        ids = tok.encode(text, add_special_tokens=False).ids + [tok.token_to_id("<|endoftext|>")]
        state = np.array(model.model(mx.array([ids]))[0, -1].astype(mx.float32), dtype=np.float64)[:n]
        return state / np.sqrt((state ** 2).sum()), len(ids)
    return vector


def test_vectors(served, expected):
    client = served.client()
    floats = client.embeddings.create(model="any", input=TEXTS, encoding_format="float")
    assert [d.index for d in floats.data] == [0, 1, 2, 3] and floats.model == served.model
    assert floats.usage.prompt_tokens == floats.usage.total_tokens == sum(expected(t)[1] for t in TEXTS)
    for d, text in zip(floats.data, TEXTS):
        assert np.abs(np.array(d.embedding) - expected(text)[0]).max() < 1e-5
    default = client.embeddings.create(model="any", input=TEXTS)  # the library asks for base64
    raw = httpx.post(served.url + "/v1/embeddings", json={"input": TEXTS, "encoding_format": "base64"}).json()
    for i, d in enumerate(floats.data):
        one = np.array(d.embedding, dtype=np.float32)
        assert base64.b64decode(raw["data"][i]["embedding"]) == struct.pack(f"<{len(one)}f", *one)
        assert np.array_equal(np.array(default.data[i].embedding, dtype=np.float32), one)


def test_dimensions_and_instruction(served, expected):
    client = served.client()
    short = client.embeddings.create(model="any", input=TEXTS[0], dimensions=10, encoding_format="float")
    vector = np.array(short.data[0].embedding)
    assert len(vector) == 10 and abs((vector ** 2).sum() - 1) < 1e-6
    assert np.abs(vector - expected(TEXTS[0], 10)[0]).max() < 1e-5
    reply = httpx.post(served.url + "/v1/embeddings", json={"input": "fox", "instruction": "Find animals"}).json()
    assert np.abs(np.array(reply["data"][0]["embedding"]) -
                  expected("Instruct: Find animals\nQuery:fox")[0]).max() < 1e-5


def test_token_ids(served, tiny):
    from tokenizers import Tokenizer
    ids = Tokenizer.from_file(str(tiny / "tokenizer.json")).encode(TEXTS[0], add_special_tokens=False).ids

    def vectors(value):
        return [d["embedding"] for d in httpx.post(served.url + "/v1/embeddings", json={"input": value}).json()["data"]]
    text = vectors(TEXTS[0])
    assert vectors(ids) == text and vectors([ids]) == text and vectors([ids, TEXTS[0]]) == text * 2


@pytest.mark.parametrize("body,param", [
    ({}, "input"), ({"input": []}, "input"), ({"input": ""}, "input"), ({"input": [""]}, "input"),
    ({"input": 5}, "input"), ({"input": [[]]}, "input"), ({"input": [-1]}, "input"), ({"input": ["a", None]}, "input"),
    ({"input": [1.5]}, "input"), ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ({"input": "a", "dimensions": 0}, "dimensions"), ({"input": "a", "dimensions": 65}, "dimensions"),
    ({"input": "a", "instruction": 1}, "instruction"), ({"input": ["a"] * 2049}, "input")])
def test_refused(served, body, param):
    reply = httpx.post(served.url + "/v1/embeddings", json=body)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == param


def test_too_long(served):
    error = httpx.post(served.url + "/v1/embeddings", json={"input": "x y z " * 600}).json()["error"]
    assert error["code"] == "context_length_exceeded" and error["param"] == "input"


def test_capability(served, http):
    row = httpx.get(served.url + "/v1/models").json()["data"][0]
    assert row["embeddings"] is True and row["capabilities"]["embeddings"] is True
    reply = http.post("/v1/embeddings", json={"input": "a"})
    assert reply.status_code == 400 and "not an embedding model" in reply.json()["error"]["message"]
    assert http.get("/v1/models").json()["data"][0]["embeddings"] is False
