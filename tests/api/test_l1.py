"""`quern generate --l1` writes what `mlx_lm.generate` writes, from the same command line."""
import json
import os
import subprocess

import pytest

from conftest import QUERN_BIN, QUERN_MODEL, ROOT

with open(os.path.join(ROOT, "tests", "golden", "l1_real.json"), encoding="utf-8") as f:
    SEEDED = json.load(f)["seeded"]


def quern(*argv):
    return subprocess.run([QUERN_BIN, *argv], capture_output=True, check=True, timeout=300, text=True).stdout


@pytest.fixture(scope="module")
def bfloat16(need_model, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("l1") / "bfloat16")
    quern("convert", QUERN_MODEL, "--dtype", "bfloat16", "--mlx-path", folder)
    return folder


@pytest.mark.parametrize("run", SEEDED, ids=[r["flags"] for r in SEEDED])
def test_text(bfloat16, run):
    got = quern("generate", "--model", bfloat16, "--prompt", run["text"], "--max-tokens", "64", "--l1", *run["flags"].split())
    assert got.rstrip("\n") == run["reply"].rstrip("\n")


def test_help_says_what_it_costs():
    text = " ".join(quern("help", "generate").split())
    assert "--l1" in text and "bfloat16" in text and "comparisons" in text


def test_l2_is_the_config(bfloat16):
    """The KV cache of kv_config.json, unless flags say otherwise; the folder of this model has none."""
    ask = ("generate", "--model", bfloat16, "--prompt", "The sea is", "--raw", "--max-tokens", "40")
    plain, four = quern(*ask), quern(*ask, "--kv-quant", "4")
    assert plain != four
    assert quern(*ask, "--l2") == quern(*ask, "--l1", "--l2") == plain
    assert quern(*ask, "--l2", "--kv-bits", "4") == four
    config = os.path.join(bfloat16, "kv_config.json")
    layers = json.load(open(os.path.join(bfloat16, "config.json")))["num_hidden_layers"]
    with open(config, "w", encoding="utf-8") as f:
        json.dump([{"layer_idx": i, "bits": 4, "group_size": 64} for i in range(layers)], f)
    try:
        assert quern(*ask, "--l2") == four
        assert quern(*ask, "--l2", "--kv-quant", "off") == quern(*ask) == plain
    finally:
        os.remove(config)
