"""GPT-2's experiment in miniature, from a text to a sample, over four processes and then two."""

import json
import signal
import time

import numpy as np
import pytest

from tests.helpers.launching import launch, launched
from tlite.cli import main
from tlite.training.metrics import read_metrics

HEARTBEAT = 5
# The embedding table is large enough to be sharded.
TINY = (
    "--vocabulary-size 4160 --width 16 --num-heads 2 --num-blocks 1 --context 16 "
    "--batch-size 8 --per-device-batch-size 1 --sharding fsdp --precision float32 "
    "--attention exact --warmup-steps 5 --learning-rate 0.01 --validation-tokens 256 "
    "--steps 30 --evaluate-every 5"
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    texts = (f"{number} bottles of beer on the wall. " for number in range(400))
    source = folder / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text * 3}) + "\n" for text in texts))
    options = "--tokenizer bytes --validation-fraction 0.1"
    assert main(["prepare", str(source), str(folder / "corpus"), *options.split()]) == 0
    return folder / "corpus"


def test_four_train_one_is_killed_two_resume_and_one_generates(corpus, tmp_path, capsys):
    line = f"gpt2 --folder {corpus} {TINY}"
    run = tmp_path / "run"
    with launch(f"train {line} --run run --heartbeat {HEARTBEAT}", tmp_path, 4) as four:
        four.wait_until((run / "checkpoints" / "5").exists)
        four.kill(2)
        killed = time.monotonic()
        code, out, err = four.end()
    assert time.monotonic() - killed < HEARTBEAT + 10
    assert code == 128 + signal.SIGKILL
    assert "tlite: process 2 was ended by SIGKILL: " in err
    assert "devices=4xcpu" in out
    assert losses(run, "validation").keys() < {5, 10, 15, 20, 25, 30}

    assert "devices=2xcpu" in launched("train --resume run", tmp_path, 2)
    launched(f"train {line} --run alone", tmp_path, 1)
    alone = tmp_path / "alone"
    for split, steps in (("training", range(1, 31)), ("validation", range(5, 31, 5))):
        resumed, expected = losses(run, split), losses(alone, split)
        assert list(resumed) == list(expected) == [*steps]
        np.testing.assert_allclose([*resumed.values()], [*expected.values()], rtol=1e-4)

    capsys.readouterr()
    assert main(["generate", str(run), "--prompt", "9 bottles", "--tokens", "20"]) == 0
    assert capsys.readouterr().out.startswith("9 bottles")


def losses(run, split):
    """Return the losses by step, in the order of the lines."""
    lines = read_metrics(run / "metrics.jsonl")
    return {line["step"]: line["loss"] for line in lines if line["split"] == split}
