"""A running `quern serve` for the API tests.

QUERN_BIN (or QUERN) is the program, QUERN_MODEL the converted SmolLM2-135M-Instruct: a folder, or the
name that `quern ls` gives it, which is also looked for when the variable is unset. Without a model the
tests are skipped, loudly.

QUERN_SCRIPTED is the same server over a model whose replies the requests choose (tests/tools/scripted_server.c).
"""
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading

import anthropic
import httpx
import openai
import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
QUERN_BIN = (os.environ.get("QUERN_BIN") or os.environ.get("QUERN")
             or os.path.join(ROOT, "build", "release", "quern"))
SCRIPTED_BIN = os.environ.get("QUERN_SCRIPTED") or os.path.join(os.path.dirname(QUERN_BIN), "tests", "scripted_server")
JS_FOLDER = os.path.join(ROOT, ".cache", "js")
JS_SCRIPTS = os.path.join(ROOT, "tests", "api", "js")
START_SECONDS = 120


def find_model():
    """The model to serve, or "" if this machine has none."""
    if os.environ.get("QUERN_MODEL"):
        return os.environ["QUERN_MODEL"]
    try:
        done = subprocess.run([QUERN_BIN, "ls", "--ids"], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return next((i for i in done.stdout.decode().split() if "SmolLM2-135M-Instruct" in i), "")


QUERN_MODEL = find_model()


class Server:
    """One `quern serve` process, or another program like it; `log` is what it wrote to stderr so far."""

    def __init__(self, *args, env=None, command=None):
        command = command or [QUERN_BIN, "serve", QUERN_MODEL, "--port", "0"]
        self.errors = tempfile.TemporaryFile()
        self.process = subprocess.Popen([*command, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.errors,
                                        env=dict(os.environ, **(env or {})))
        killer = threading.Timer(START_SECONDS, self.process.kill)
        killer.start()
        line = self.process.stdout.readline().decode()
        killer.cancel()
        match = re.fullmatch(r"listening on (http://\S+:(\d+)) model=(\S+)\n", line)
        assert match, f"no address from the server: {line!r}\n{self.log}"
        self.url, self.port, self.model = match[1], int(match[2]), match[3]

    @property
    def log(self):
        self.errors.seek(0)
        return self.errors.read().decode("utf-8", "replace")

    def stop(self, number=signal.SIGTERM):
        """End it as a user would; returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def anthropic(self, **kwargs):
        return anthropic.Anthropic(base_url=self.url, api_key="unused", max_retries=0, timeout=120, **kwargs)

    def client(self, **kwargs):
        return openai.OpenAI(base_url=self.url + "/v1", api_key="unused", max_retries=0, timeout=120, **kwargs)


@pytest.fixture(scope="session")
def need_model():
    if not QUERN_MODEL:
        pytest.skip("no SmolLM2-135M-Instruct here (QUERN_MODEL, quern ls): nothing to serve")
    assert os.path.exists(QUERN_BIN), f"{QUERN_BIN} is missing: build it first, or set QUERN_BIN"


@pytest.fixture
def start(need_model):
    """Start servers with options of a test's own; they end with the test."""
    running = []

    def begin(*args, **kwargs):
        running.append(Server(*args, **kwargs))
        return running[-1]

    yield begin
    for server in running:
        server.stop()


@pytest.fixture(scope="session")
def server(need_model):
    one = Server("--batch", "8")
    yield one
    assert one.process.poll() is None, f"a request ended the server:\n{one.log[-4000:]}"
    assert one.stop() == 0


@pytest.fixture
def start_scripted():
    """Start scripted servers with options of a test's own; they end with the test."""
    running = []

    def begin(*args):
        running.append(Server(*args, command=[SCRIPTED_BIN]))
        return running[-1]

    yield begin
    for one in running:
        assert one.stop() == 0


@pytest.fixture(scope="session")
def scripted():
    """A server whose reply is what stands between <|say|> and <|said|> in the request."""
    one = Server("--ping-ms", "300", command=[SCRIPTED_BIN])
    yield one
    assert one.process.poll() is None, f"a request ended the server:\n{one.log[-4000:]}"
    assert one.stop() == 0


@pytest.fixture(scope="session")
def node():
    """The node to run scripts with; they lie where they find the packages."""
    os.makedirs(os.path.dirname(JS_FOLDER), exist_ok=True)
    done = subprocess.run([f"{ROOT}/scripts/fetch-js", JS_FOLDER], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"status {done.returncode}"]
        pytest.skip(f"no JavaScript clients: {why[0]}")
    for name in os.listdir(JS_SCRIPTS):
        if name != "package.json":
            shutil.copy(os.path.join(JS_SCRIPTS, name), JS_FOLDER)
    return done.stdout.strip()


@pytest.fixture(scope="session")
def client(server):
    return server.client()


@pytest.fixture(scope="session")
def http(server):
    with httpx.Client(base_url=server.url, timeout=120) as c:
        yield c


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with a tiny model that mlx-lm's programs open as well (tiny.py)."""
    from tiny import make_model
    folder = tmp_path_factory.mktemp("tiny") / "tiny-qwen3"
    make_model(folder)
    return folder
