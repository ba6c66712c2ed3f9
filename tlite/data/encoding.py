"""Pieces of a source as tokens on disk, by several processes: what `prepare` begins with."""

import functools
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np

from tlite.data.corpus import BEGINNINGS, TYPES, Manifest, write_file
from tlite.data.documents import Fragment, Piece, Source, read_piece
from tlite.errors import UserError
from tlite.text import load_tokenizer
from tlite.text.tokenizer import encoding_by_library, read_by_library

AT_ONCE = 64  # fragments that are encoded together
BEFORE = "a"  # a letter stands for the text before a fragment
TOTALS = "totals.json"  # of a piece: how many tokens, documents and bytes of text each part has

Encode = Callable[[list[Fragment]], Iterable[np.ndarray]]


def encode_piece(source: Source, corpus: Manifest, folder: Path, task: tuple[int, Piece]) -> None:
    """Write the tokens of a piece, for each part a file: a folder that appears whole.

    Args:
        corpus: says how texts become tokens.
        task: the piece's number, by which its folder in `folder` is called, and the piece.

    Raises:
        UserError: the piece can't be read, or has a text that can't be encoded.
    """
    number, piece = task
    new, dtype = folder / f"{number}.new", TYPES[corpus.dtype]
    encode = load_encoder(corpus.tokenizer.kind, corpus.tokenizer.path)
    end = np.array([] if corpus.end_id is None else [corpus.end_id], dtype)
    shutil.rmtree(new, ignore_errors=True)  # of a try that was killed
    new.mkdir()
    files = {part: (new / part).open("wb") for part in BEGINNINGS}
    totals = {part: Counter() for part in BEGINNINGS}
    fragments = read_piece(source, piece)
    while group := list(itertools.islice(fragments, AT_ONCE)):
        for (text, side, _, ends), ids in zip(group, encode(group), strict=True):
            ids = np.concatenate([ids.astype(dtype), end]) if ends else ids.astype(dtype)
            files[side].write(ids.tobytes())
            totals[side].update(tokens=len(ids), documents=int(ends), bytes=len(text.encode()))
    for file in files.values():
        file.flush()
        os.fsync(file.fileno())
        file.close()
    write_file(new / TOTALS, json.dumps(totals))
    new.rename(folder / str(number))


@functools.lru_cache(1)
def load_encoder(kind: str, path: str) -> Encode:
    """The function from fragments to their ids that a tokenizer's file describes.

    No text has marks in it: "<|endoftext|>" typed in a document is encoded as it is spelled. Some
    tokenizers begin each text with a mark of their own, Llama's with the "▁" of a word: so a
    fragment that goes on with a document is encoded behind a letter, as the text before it has one,
    and the letter's tokens are left out.
    """
    if kind != "pretrained":
        own = load_tokenizer(path)
        return lambda group: [own.encode(fragment.text) for fragment in group]
    tokenizer = read_by_library(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True

    def ids_of(texts: list[str]) -> list[list[int]]:
        with encoding_by_library():
            found = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def encode(group: list[Fragment]) -> Iterator[np.ndarray]:
        rows = ids_of([("" if f.begins else BEFORE) + f.text for f in group])
        for fragment, ids in zip(group, rows, strict=True):
            if not fragment.begins:
                joined = ids[: len(letter)] != letter  # in the middle of a word
                ids = ids_of([fragment.text])[0] if joined else ids[len(letter) :]
            yield np.array(ids, np.uint32)

    (letter,) = ids_of([BEFORE])
    return encode


def by_processes(function: Callable, tasks: Sequence, processes: int) -> Iterator[None]:
    """Call the function with each task, and yield whenever one is done; with one process none is
    started. They end with this one, however it ends.

    Raises:
        UserError: what the function raises, or a process was killed.
    """
    if min(processes, len(tasks)) <= 1:
        yield from map(function, tasks)
        return
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    others = set(multiprocessing.active_children())
    with ProcessPoolExecutor(min(processes, len(tasks)), context, _begin) as pool:
        try:
            for done in as_completed([pool.submit(function, task) for task in tasks]):
                yield done.result()
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in set(multiprocessing.active_children()) - others:
                process.kill()  # nobody waits for what they do now
            if isinstance(error, BrokenProcessPool):
                raise UserError(
                    "a process that encodes texts was killed, perhaps for want of memory: the same "
                    "command goes on, with fewer --processes if need be"
                ) from error
            raise


def _begin() -> None:
    """What a process does first: leave Ctrl-C to its parent, and end when that has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core each
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    multiprocessing.parent_process().join()
    os._exit(1)
