"""Token files from texts of any size: in constant memory, by several processes, resumable.

All is written beside, in FOLDER.preparing: each piece of the source becomes a folder of its tokens
there, which are joined at last, and FOLDER appears when it is whole. After a kill the same command
goes on with the pieces that are not there yet, and what comes out are the bytes that any number of
processes would have made without it. While it is made it needs room for its tokens twice.
"""

import contextlib
import fcntl
import functools
import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from tlite.data.corpus import (
    DTYPES,
    MANIFEST,
    PREFIXES,
    CorpusTokenizer,
    Manifest,
    SplitFiles,
    TokenFile,
    dtype_for,
    read_manifest,
    write_file,
    write_manifest,
)
from tlite.data.documents import SIZE, Fragment, Piece, Source, plan, read_piece, source_files
from tlite.data.reading import pieces as read_pieces
from tlite.distributed.devices import num_cores
from tlite.errors import Interrupted, UserError, disk_errors
from tlite.text import load_tokenizer
from tlite.text.tokenizer import encoding_by_library, read_by_library

ASKED = "asked.json"  # what is prepared: the same command goes on, no other
TOTALS = "totals.json"  # of a piece: how many tokens, documents and bytes of text each part has
SAMPLED_PIECES = 16  # that a tokenizer is learned from, at even distances
AT_ONCE = 64  # fragments that are encoded together
BEFORE = "a"  # a letter stands for the text before a fragment

Texts = Callable[[int | None], Iterable[str]]


def prepare(
    source: Source,
    folder: Path,
    tokenizer: str,
    make: Callable[[Texts], Any],
    *,
    shard_tokens: int = 0,
    processes: int = 0,
    piece_size: int = SIZE,
) -> Manifest:
    """Make a corpus of a source.

    Args:
        tokenizer: what it is called; a preparation goes on with the same only.
        make: from a function that gives the texts, so many bytes of the training part or all, to
            a tokenizer of `tlite.text` or `tlite.pretrained`.
        shard_tokens: of a token file, before the next begins; 0: one file for each part.
        processes: 0: one for each core.
        piece_size: bytes of a text or of JSON Lines that a process reads at a time.

    Raises:
        UserError: the source can't be read, the folder exists, or what was begun was another one.
    """
    if shard_tokens < 0 or processes < 0:
        raise UserError("--shard-tokens and --processes must not be negative")
    work = folder.parent / f"{folder.name}.preparing"
    _check_free(folder, work)
    pieces = plan(source, piece_size)
    request = {"source": asdict(source), "tokenizer": tokenizer, "piece_size": piece_size}
    request["files"] = source_files(source, pieces)
    with disk_errors(work), _work_folder(work, request):
        manifest = _begun(work / "corpus", source, pieces, tokenizer, make)
        _encode(source, manifest, pieces, work / "pieces", processes or num_cores())
        splits = _join(work, len(pieces), DTYPES[manifest.dtype].itemsize, shard_tokens)
        if source.validation_fraction and "validation" not in splits:
            shutil.rmtree(work)  # another fraction is another command
            raise UserError("no document is in the validation part: raise --validation-fraction")
        return _appear(work, folder, replace(manifest, splits=splits))


def _check_free(folder: Path, work: Path) -> None:
    """Raises a `UserError` where the folder exists; what a kill has left after that goes."""
    if os.path.lexists(folder):
        if (work / ASKED).exists() and not (work / "corpus").exists():
            shutil.rmtree(work, ignore_errors=True)
        raise UserError(f"{folder} exists already: name another folder, or remove it")


def _appear(work: Path, folder: Path, manifest: Manifest) -> Manifest:
    """Let the corpus appear, once all of it is on the disk."""
    write_manifest(work / "corpus", manifest)
    for path in (work / "corpus").iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    os.rename(work / "corpus", folder)
    shutil.rmtree(work, ignore_errors=True)
    return manifest


@contextlib.contextmanager
def _work_folder(work: Path, asked: dict[str, Any]) -> Iterator[None]:
    """The folder of this preparation alone, new or left behind by the same command.

    Raises:
        UserError: it is another one's, or another process is at it now.
    """
    content = json.dumps(asked, indent=2)
    work.mkdir(parents=True, exist_ok=True)
    with (work / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"another process is writing {work} now") from error
        before = work / ASKED
        if not before.exists():
            if {path.name for path in work.iterdir()} - {"lock", f"{ASKED}.new"}:
                raise UserError(f"{work} is in the way: it is not what tlite prepare has begun")
        elif before.read_text(encoding="utf-8") != content:
            if any((work / "pieces").glob(f"*/{TOTALS}")):
                raise UserError(
                    f"{work} is what another command has begun, or its source has changed: remove "
                    "it to begin anew"
                )
            shutil.rmtree(work / "corpus", ignore_errors=True)  # the tokenizer of what came to none
        write_file(before, content)
        for name in ("pieces", "corpus"):
            (work / name).mkdir(exist_ok=True)
        yield


def _begun(
    folder: Path, source: Source, pieces: list[Piece], name: str, make: Callable[[Texts], Any]
) -> Manifest:
    """The corpus without its parts, with its tokenizer; made once, and kept for later tries."""
    if not (folder / MANIFEST).exists():
        tokenizer = make(partial(texts_of, source, pieces))
        path = folder / tokenizer.file_name
        tokenizer.save(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        size = max(len(tokenizer), tokenizer.largest_id + 1)
        of, origin = CorpusTokenizer(tokenizer.kind, str(path), digest), asdict(source)
        origin["tokenizer"] = name
        write_manifest(folder, Manifest(dtype_for(size), size, {}, of, tokenizer.eos_id, origin))
    return replace(read_manifest(folder), splits={})


def texts_of(source: Source, pieces: list[Piece], size: int | None) -> Iterator[str]:
    """Texts to learn a tokenizer from: all of them, or about `size` bytes of the training part.

    They are the beginnings of some pieces, at even distances over the source.
    """
    if size is None:
        for piece in pieces:
            yield from (fragment.text for fragment in read_piece(source, piece))
        return
    pieces = [piece for piece in pieces if piece.side != "validation"]
    number = min(len(pieces), SAMPLED_PIECES)
    chosen = [pieces[index * len(pieces) // number] for index in range(number)]
    for piece in chosen:
        left = size // len(chosen)
        for fragment in read_piece(source, piece):
            if fragment.side == "training":
                yield fragment.text
                left -= len(fragment.text.encode())
            if left <= 0:
                break


# Texts become tokens, piece by piece


def _encode(
    source: Source, corpus: Manifest, pieces: list[Piece], folder: Path, processes: int
) -> None:
    """Encode the pieces that are not there yet; how far it is is shown, on a terminal as a bar."""
    left = [task for task in enumerate(pieces) if not (folder / str(task[0])).exists()]
    results = by_processes(partial(encode_piece, source, corpus, folder), left, processes)
    total, done, bar = len(pieces), len(pieces) - len(left), sys.stdout.isatty()
    with contextlib.closing(results):
        try:
            for _ in track(results, "encoding", total, completed=done, disable=not bar):
                done += 1
                if not bar and 10 * done // total > 10 * (done - 1) // total:
                    print(f"{done:,} of {total:,} pieces are encoded", flush=True)
        except KeyboardInterrupt:
            at = f"after {done:,} of {total:,} pieces"
            raise Interrupted(
                f"interrupted {at}: the same command goes on from there", signal.SIGINT
            ) from None


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


def encode_piece(source: Source, corpus: Manifest, folder: Path, task: tuple[int, Piece]) -> None:
    """Write the tokens of a piece, for each part a file: a folder that appears whole.

    Args:
        corpus: says how texts become tokens.
        task: the piece's number, by which its folder in `folder` is called, and the piece.

    Raises:
        UserError: the piece can't be read, or has a text that can't be encoded.
    """
    number, piece = task
    new, dtype = folder / f"{number}.new", DTYPES[corpus.dtype]
    encode = load_encoder(corpus.tokenizer)
    end = np.array([] if corpus.end_id is None else [corpus.end_id], dtype)
    shutil.rmtree(new, ignore_errors=True)  # of a try that was killed
    new.mkdir()
    files = {part: (new / part).open("wb") for part in PREFIXES}
    totals = {part: Counter() for part in PREFIXES}
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
def load_encoder(entry: CorpusTokenizer) -> Callable[[list[Fragment]], Iterable[np.ndarray]]:
    """The function from fragments to their ids that the tokenizer in a manifest describes.

    Two tokenizers with the same path differ in their entry's SHA-256, by which they are cached.

    No text has marks in it: "<|endoftext|>" typed in a document is encoded as it is spelled. Some
    tokenizers begin each text with a mark of their own, Llama's with the "▁" of a word: so a
    fragment that goes on with a document is encoded behind a letter, as the text before it has one,
    and the letter's tokens are left out.
    """
    if entry.kind != "pretrained":
        own = load_tokenizer(entry.path)
        return lambda group: [own.encode(fragment.text) for fragment in group]
    tokenizer = read_by_library(entry.path)
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


# Tokens of pieces become files


def _join(work: Path, pieces: int, width: int, shard_tokens: int) -> dict[str, SplitFiles]:
    """Write the tokens of all pieces, one behind the other, to the files of each part."""
    for path in (work / "corpus").glob("*.bin"):  # of a try that was killed
        path.unlink()
    folders, totals = [work / "pieces" / str(n) for n in range(pieces)], Counter()
    for folder in folders:
        for part, counts in json.loads((folder / TOTALS).read_text()).items():
            totals.update({(part, name): count for name, count in counts.items()})
    parts = {}
    for part, beginning in PREFIXES.items():
        paths = (folder / part for folder in folders)
        chunks = (chunk for path in paths for chunk in read_pieces(path, any_size=True))
        files, left = [], next(chunks, b"")
        room = (shard_tokens or totals[part, "tokens"]) * width
        while left:
            name = f"{beginning}-{len(files):05d}.bin" if shard_tokens else f"{beginning}.bin"
            size, digest = 0, hashlib.sha256()
            with (work / "corpus" / name).open("wb") as file:
                while chunk := left[: room - size]:
                    file.write(chunk)
                    digest.update(chunk)
                    size, left = size + len(chunk), left[len(chunk) :] or next(chunks, b"")
            files.append(TokenFile(name, size // width, digest.hexdigest()))
        if files:
            counts = totals[part, "documents"], totals[part, "bytes"]
            parts[part] = SplitFiles(tuple(files), *counts)
    return parts
