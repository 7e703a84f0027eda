"""Server-sent events with names, read byte by byte against the format."""
import json


def events(http, path, body):
    """The events of a stream as (name, payload), in order; comments are left out."""
    with http.stream("POST", path, json={**body, "stream": True}) as reply:
        raw = b"".join(reply.iter_bytes())
        assert reply.status_code == 200, raw
        assert reply.headers["content-type"] == "text/event-stream"
    assert raw.endswith(b"\n\n") and b"\r" not in raw
    out = []
    for frame in raw[:-2].split(b"\n\n"):
        if frame.startswith(b": "):
            assert b"\n" not in frame
            continue
        name, data = frame.split(b"\n")
        assert name.startswith(b"event: ") and data.startswith(b"data: ")
        payload = json.loads(data[6:].decode("utf-8"))
        assert payload["type"] == name[7:].decode()
        out.append((payload["type"], payload))
    return out


# What we add to the clients' models.
KNOWN_EXTRAS = {"Response": {"store"}, "ResponseCustomToolCall": {"status"},
                "ResponseFunctionCallArgumentsDoneEvent": {"name"},
                "Logprob": {"id", "bytes"}, "LogprobTopLogprob": {"id", "bytes"}}


def check_model(adapter, payload):
    """Validate an object with a pydantic adapter, strictly, and see that nothing unknown is in it."""
    found = adapter.validate_json(json.dumps(payload), strict=True)

    def look(v, where):
        if isinstance(v, list):
            for i, x in enumerate(v):
                look(x, f"{where}[{i}]")
        elif hasattr(v, "model_fields_set"):
            unknown = set(v.model_extra or ()) - KNOWN_EXTRAS.get(type(v).__name__, set())
            assert not unknown, f"{where} ({type(v).__name__}): unknown members {unknown} in {payload}"
            for name in type(v).model_fields:
                look(getattr(v, name), f"{where}.{name}")
    look(found, payload["type"] if "type" in payload else "object")
    return found
