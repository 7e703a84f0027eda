"""The examples of docs/protocols run as they stand, only on another port."""
import glob
import os
import re
import subprocess
import sys

import pytest

from conftest import JS_FOLDER, ROOT


def examples():
    for path in sorted(glob.glob(f"{ROOT}/docs/protocols/*.md")):
        with open(path, encoding="utf-8") as f:
            for i, (kind, code) in enumerate(re.findall(r"^```(sh|python|js)\n(.*?)^```$", f.read(), re.S | re.M)):
                yield pytest.param(kind, code, id=f"{os.path.basename(path)}-{i}-{kind}")


@pytest.mark.parametrize("kind,code", list(examples()))
def test_example(server, kind, code, request):
    assert "127.0.0.1:8080" in code
    code = code.replace("127.0.0.1:8080", f"127.0.0.1:{server.port}")
    if kind == "js":
        command = [request.getfixturevalue("node"), "--input-type=module", "-e", code]
    else:
        command = ["sh", "-ec", code] if kind == "sh" else [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=JS_FOLDER if kind == "js" else None, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stdout.lower().replace('"error":null', ""), done.stdout
    assert "Paris" in done.stdout or done.stdout.strip().isdigit(), done.stdout
