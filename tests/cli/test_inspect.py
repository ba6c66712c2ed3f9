"""`tlite inspect`: where it draws, and each mistake with exit code 2. (What is drawn is in
tests/system/test_inspect_run.py.)"""

import shutil
from pathlib import Path
from types import SimpleNamespace

import jax
import pytest

from tests.helpers.inspected import undrawn
from tlite.models import Attention, FeedForward, GeneratorConfig, Head, TransformerGenerator
from tlite.pretrained import save_pretrained
from tlite.text import CharTokenizer

pytest.importorskip("sklearn")
pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def trained(classifier, tmp_path_factory):
    """A copy: pictures go into the run."""
    copy = tmp_path_factory.mktemp("inspected") / "run"
    return SimpleNamespace(run=shutil.copytree(classifier.run, copy))


@pytest.fixture(autouse=True)
def empty_pictures(monkeypatch):
    """Pictures are files with nothing in them: to draw them takes long."""
    undrawn(monkeypatch)


@pytest.mark.parametrize("options", ["", " --text 'The sound is superb.' --member 1"])
def test_the_command_ends_with_the_number_of_pictures_and_the_page(tlite, trained, options):
    code, out, err = tlite("inspect {run}" + options)
    assert (code, err) == (0, "")
    folder = trained.run / "inspection"
    number = len(list(folder.glob("*.png")))
    assert number > 5
    page = folder / "index.html"
    assert out == f"{number} pictures in {folder}; all of them on one page: {page}\n"
    assert page.stat().st_size > 1000


def test_a_page_needs_neither_memory_nor_optimizer_of_training(works, trained, without_training):
    works("inspect {run}")
    assert without_training == {"parameters"}


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """A folder as transformers writes it, with a character for each token."""
    folder, tokenizer = tmp_path_factory.mktemp("pretrained") / "gpt2", CharTokenizer("abc d")
    config = GeneratorConfig(
        vocabulary_size=len(tokenizer), context=8, width=8, num_heads=2, num_blocks=1,
        block="pre_norm", feed_forward=FeedForward(activation="gelu"),
        attention=Attention(input_bias=True), head=Head(tied=True),
    )  # fmt: skip
    save_pretrained(folder, TransformerGenerator(config, rng=jax.random.key(0)), tokenizer)
    return folder


def test_a_folder_of_transformers_is_looked_at_too_and_stays_as_it_is(works, pretrained, tmp_path):
    before = sorted(pretrained.rglob("*"))
    out = works("inspect {pretrained} --text 'ab ba'", pretrained=pretrained)
    assert sorted(pretrained.rglob("*")) == before
    folder = Path("inspection", "gpt2")
    number = len(list((tmp_path / folder).glob("*.png")))
    assert number > 10
    page = folder / "index.html"
    assert out == f"{number} pictures in {folder}; all of them on one page: {page}\n"


def test_the_place_of_the_pictures_can_be_told_where_nothing_is_lost(works, fails):
    for _ in range(2):
        assert works("inspect {run} --to mine").endswith("mine/index.html\n")
    (other := Path("other")).mkdir()
    (other / "cat.png").touch()
    assert "other has files that are no page's" in fails("inspect {run} --to other")
    assert [*other.iterdir()] == [other / "cat.png"]


def test_a_mistake_with_a_folder_of_transformers_is_told(fails, pretrained):
    line = f"inspect {pretrained} "
    assert "the text to look at is empty" in fails(line + "--text ' '")
    assert "--checkpoint and --member are for runs" in fails(line + "--checkpoint last")
