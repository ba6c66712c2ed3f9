"""A generator of subwords."""

import json
import re

import pytest

pytest.importorskip("tokenizers")
pytestmark = pytest.mark.usefixtures("one_device")
TEXT = "The quick brown fox jumps over the läzy dog.\n" * 60
TINY = (
    "--steps 2 --evaluate-every 2 --width 8 --num-heads 2 --num-blocks 1 --context 16 "
    "--batch-size 4 --precision float32 "
)


@pytest.fixture(scope="module")
def trained(train, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return train(f"my_text --path {path} --tokenizer bpe:300 {TINY}")


def test_subwords_are_trained_evaluated_and_generated(works, trained):
    message = r"validation loss \S+ nats per token, perplexity \S+, [\d.]+ bits per byte"
    assert re.search(message, trained.printed)
    assert re.search(message, works("evaluate {run}"))
    line = "generate {run} --tokens 8 --greedy --prompt "
    assert works(line + "'Öl <|endoftext|> 漢'") != "Öl <|endoftext|> 漢\n"
    assert works("generate {run} --tokens 8 --greedy") == works(line + "'The '")


def test_without_a_prompt_the_end_mark_starts_a_text(works, copied):
    config = json.loads((copied / "config.json").read_text())
    config["experiment"]["prompt"] = ""
    (copied / "config.json").write_text(json.dumps(config))
    assert works("generate {copied} --tokens 8", copied=copied)
