"""The steps of ./check: style, builds, unit tests, tests from Python, short fuzz runs.

Every step writes its output to build/check/STEP.log; of a failing one the end is shown. A failing
step does not stop the others. The last line sums the tests of all steps up.
"""
import concurrent.futures
import glob
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = os.path.join(ROOT, "build", "check")
VENV = os.path.join(ROOT, ".cache", "venv")
QUERN = os.path.join(ROOT, "build", "release", "quern")
GGUF = os.path.join(ROOT, ".cache", "SmolLM2-135M-Instruct.Q4_1.gguf")
MODEL = "SmolLM2-135M-Instruct.Q4_1"
JOBS = len(os.sched_getaffinity(0))
FUZZ_SECONDS = int(os.environ.get("QUERN_FUZZ_SECONDS", "60"))  # of all targets, as many at once as there are processors
PYTEST_SECONDS = 7200 if os.environ.get("QUERN_TEST_LONG") == "1" else 900
TEST_SECONDS = 600  # of one unit test program
# Rooms whose code runs on several threads: their tests run under the thread sanitizer too.
THREADED = ("engine", "serve", "cache", "compute", "model")


class Count:
    """Tests of one step."""

    def __init__(self, passed=0, failed=0, skipped=0):
        self.passed, self.failed, self.skipped = passed, failed, skipped

    def add(self, other):
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


class Log:
    """The log file of a step."""

    def __init__(self, name):
        self.path = os.path.join(LOGS, name + ".log")
        self.file = open(self.path, "w", encoding="utf-8", errors="replace")

    def write(self, text):
        self.file.write(text)
        self.file.flush()

    def run(self, *argv, timeout=None, env=None):
        """Run a command; returns (status, output). A command over its time counts as failed."""
        command = "$ " + " ".join(argv) + "\n"  # beside its output: commands may run at once
        try:
            done = subprocess.run(argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, timeout=timeout, env=env, check=False)
            status, output = done.returncode, done.stdout
        except subprocess.TimeoutExpired as late:
            status, output = 124, (late.stdout or b"") + b"\nstopped: over its time\n"
        text = output.decode("utf-8", "replace")
        self.write(command + text)
        return status, text


def one(status):
    """A step that is one test."""
    return Count(passed=1) if status == 0 else Count(failed=1)


# ---- builds ----

def build(log, preset, *targets, folder=None, options=()):
    """Configure and build a preset; a warning is a failure."""
    folder = folder or "build/" + preset
    status, _ = log.run("cmake", "--preset", preset, "-B", folder, "-Wno-dev", *options)
    if status:
        return Count(failed=1)
    status, text = log.run("ninja", "-C", folder, *targets)
    if "warning: " in text:
        log.write("the build is not free of warnings\n")
        status = 1
    return one(status)


def test_sources(kind):
    return sorted(os.path.basename(f)[:-2] for f in glob.glob(f"{ROOT}/tests/{kind}/*.c"))


def is_threaded(test):
    # The goldens of all families say nothing about threads that the invariance test does not, and take minutes.
    return test.split("_")[0] in THREADED and test != "engine_golden_test"


def build_clang(log):
    """Only for clang's warnings, which do not depend on optimization: so without it."""
    return build(log, "clang", folder="build/check/clang", options=["-DCMAKE_C_FLAGS_RELEASE=-O0"])


def build_tsan(log):
    return build(log, "tsan", "scripted_server", *(t for t in test_sources("unit") if is_threaded(t)))


# ---- unit tests ----

def count_cmocka(status, text):
    """Sum up cmocka's report; a program that ends badly without a failed test counts as one."""
    def figure(word):
        return sum(int(n) for n in re.findall(r"\[\s+" + word + r"\s+\] (\d+) test", text))
    count = Count(figure("PASSED"), figure("FAILED"), figure("SKIPPED"))
    if status and not count.failed:
        count.failed = 1
    return count


def run_unit(program, wrapper=()):
    env = dict(os.environ, ASAN_OPTIONS="detect_leaks=1", UBSAN_OPTIONS="print_stacktrace=1",
               TSAN_OPTIONS="halt_on_error=1")
    try:
        done = subprocess.run([*wrapper, program], cwd=ROOT, stdin=subprocess.DEVNULL, env=env, timeout=TEST_SECONDS,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout.decode("utf-8", "replace")
    except subprocess.TimeoutExpired as late:
        return 124, (late.stdout or b"").decode("utf-8", "replace") + "\nstopped: over its time\n"


def unit(log, preset, wanted=lambda name: True, wrapper=()):
    names = [n for n in test_sources("unit") if wanted(n)]
    programs = [f"{ROOT}/build/{preset}/tests/{n}" for n in names]
    total = Count()
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for name, (status, text) in zip(names, pool.map(lambda p: try_unit(p, wrapper), programs)):
            count = count_cmocka(status, text)
            if count.failed:
                log.write(text)
            log.write(f"{name}: {count.passed} passed, {count.failed} failed, {count.skipped} skipped\n")
            for line in text.splitlines():
                if line.startswith("SKIP"):
                    log.write(line + "\n")
            total.add(count)
    return total if names else Count(failed=1)


def try_unit(program, wrapper):
    if not os.path.exists(program):
        return 127, f"{program} was not built\n"
    return run_unit(program, wrapper)


def unit_tsan(log):
    # The sanitizer's fixed memory layout does not stand every kernel's address randomization.
    fixed = ("setarch", os.uname().machine, "-R")
    usable = subprocess.run([*fixed, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    return unit(log, "tsan", is_threaded, fixed if usable else ())


# ---- tests from Python ----

def make_venv(log):
    """The Python environment with the oracles and clients; kept while the requirements stay."""
    wanted = os.path.join(ROOT, "tests", "requirements.txt")
    stamp = os.path.join(VENV, "requirements.sha256")
    with open(wanted, "rb") as f:
        digest = hashlib.sha256(f.read() + sys.version.encode()).hexdigest()
    if os.path.exists(stamp) and open(stamp, encoding="ascii").read() == digest:
        return Count(passed=1)
    shutil.rmtree(VENV, ignore_errors=True)
    status, _ = log.run("python3", "-m", "venv", VENV)
    if not status:
        status, _ = log.run(f"{VENV}/bin/pip", "--disable-pip-version-check", "install", "--quiet", "-r", wanted)
    if not status:
        with open(stamp, "w", encoding="ascii") as f:
            f.write(digest)
    return one(status)


def fetch_model(log):
    """The real model of the tests: its GGUF file, kept, and the folder made of it."""
    os.makedirs(os.path.dirname(GGUF), exist_ok=True)
    status, _ = log.run("scripts/fetch-gguf", GGUF)
    return one(status or log.run("scripts/fetch-model", QUERN, GGUF)[0])


def unit_model(log):
    """The unit tests that need the real model: as it was published, and in bfloat16."""
    _, text = log.run(QUERN, "ls", "--json")
    model = next((m["path"] for m in json.loads(text) if m["id"] == MODEL), None)
    if not model:
        log.write(f"{MODEL} is not among quern's models: the step `model` puts it there\n")
        return Count(failed=1)
    bf16 = os.path.join(ROOT, "build", "check", MODEL + "-bfloat16")
    shutil.rmtree(bf16, ignore_errors=True)
    status, _ = log.run(QUERN, "convert", model, "--dtype", "bfloat16", "--mlx-path", bf16)
    if status:
        return Count(failed=1)
    wrapper = ("env", "QUERN_MODEL=" + model, "QUERN_MODEL_BF16=" + bf16)
    return unit(log, "release", lambda name: name in ("engine_agreement_test", "engine_l1_test"), wrapper)


def pytest(log):
    folders = [f for f in ("tests/api", "tests/golden") if glob.glob(f"{ROOT}/{f}/test_*.py")]
    env = dict(os.environ, QUERN_BIN=QUERN, QUERN_GGUF=GGUF, PYTHONDONTWRITEBYTECODE="1", HF_HUB_OFFLINE="1")
    status, text = log.run(f"{VENV}/bin/python", "-m", "pytest", "-q", "--tb=short", "-rs", "-p", "no:cacheprovider",
                           *folders, env=env, timeout=PYTEST_SECONDS)
    summary = text.strip().splitlines()[-1] if text.strip() else ""

    def figure(word):
        return sum(int(n) for n in re.findall(r"(\d+) " + word, summary))
    count = Count(figure("passed"), figure("failed") + figure("error"), figure("skipped"))
    if status and not count.failed:
        count.failed = 1
    return count


def load(log):
    """The load test against servers built with sanitizers, which end with another status when they find something."""
    total = Count()
    for preset in ("debug", "tsan"):
        env = dict(os.environ, QUERN_BIN=QUERN, QUERN_SCRIPTED=f"{ROOT}/build/{preset}/tests/scripted_server",
                   QUERN_LOAD_SECONDS="8", PYTHONDONTWRITEBYTECODE="1", ASAN_OPTIONS="detect_leaks=1",
                   TSAN_OPTIONS="halt_on_error=1")
        fixed = ("setarch", os.uname().machine, "-R")
        usable = subprocess.run([*fixed, "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
        argv = (*(fixed if usable else ()), f"{VENV}/bin/python", "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider",
                "tests/api/test_load.py")
        total.add(one(log.run(*argv, env=env, timeout=300)[0]))
    return total


# ---- fuzzing ----

def fuzz(log):
    names = test_sources("fuzz")
    # Every target has one thread, so as many run at once as there are processors.
    limit = max(5, FUZZ_SECONDS * JOBS // len(names))

    def target(name):
        corpus = os.path.join(ROOT, "build", "check", "corpus", name)
        seeds = os.path.join(ROOT, "tests", "fuzz", "seeds", name.removesuffix("_fuzz"))
        os.makedirs(corpus, exist_ok=True)
        status, _ = log.run(f"build/fuzz/tests/{name}", f"-max_total_time={limit}", "-timeout=10", "-rss_limit_mb=2048",
                            "-print_final_stats=1", f"-artifact_prefix={LOGS}/", corpus, seeds, timeout=limit + 60)
        return one(status)
    total = Count()
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        for count in pool.map(target, names):
            total.add(count)
    return total


# ---- the list ----

STEPS = [
    ("style", lambda log: Count(*layering(log))),
    ("build-release", lambda log: build(log, "release")),
    ("build-debug", lambda log: build(log, "debug")),
    ("build-clang", build_clang),
    ("build-tsan", build_tsan),
    ("build-fuzz", lambda log: build(log, "fuzz", *test_sources("fuzz"))),
    ("unit-release", lambda log: unit(log, "release")),
    ("unit-debug", lambda log: unit(log, "debug")),
    ("unit-tsan", unit_tsan),
    ("docs", lambda log: one(log.run("python3", "scripts/docs.py", "--check", QUERN)[0])),
    ("install", lambda log: one(log.run("tests/install/check.sh")[0])),
    ("python", make_venv),
    ("model", fetch_model),
    ("unit-model", unit_model),
    ("pytest", pytest),
    ("load", load),
    ("fuzz", fuzz),
]


def layering(log):
    status, text = log.run("python3", "tests/layering/check.py")
    match = re.search(r"(\d+) passed, (\d+) failed", text)
    passed, failed = (int(n) for n in match.groups()) if match else (0, 0)
    return passed, failed or int(status != 0)


def show_end(path):
    with open(path, encoding="utf-8", errors="replace") as f:
        lines = f.read().splitlines()
    for line in lines[-40:]:
        print("    " + line[:300])
    print(f"    ({os.path.relpath(path, ROOT)})")


def run_step(name, step):
    print(f"== {name} ...", flush=True)
    started = time.monotonic()
    log = Log(name)
    try:
        count = step(log)
    except Exception as error:  # a broken step is a failed one; the others go on
        log.write(f"{type(error).__name__}: {error}\n")
        count = Count(failed=1)
    seconds = time.monotonic() - started
    skipped = f", {count.skipped} skipped" if count.skipped else ""
    print(f"   {name}: {count.passed} passed, {count.failed} failed{skipped} in {seconds:.1f} s", flush=True)
    if count.failed:
        show_end(log.path)
    return count


def main(wanted):
    if wanted == ["--list"]:
        print("\n".join(name for name, _ in STEPS))
        return 0
    unknown = set(wanted) - {name for name, _ in STEPS}
    if unknown:
        print("unknown step:", ", ".join(sorted(unknown)), "- ./check --list names the steps", file=sys.stderr)
        return 2
    os.makedirs(LOGS, exist_ok=True)
    total = Count()
    for name, step in STEPS:
        if not wanted or name in wanted:
            total.add(run_step(name, step))
    skipped = f", {total.skipped} skipped" if total.skipped else ""
    print(f"{total.passed} passed, {total.failed} failed{skipped}")
    return 1 if total.failed else 0


sys.exit(main(sys.argv[1:]))
