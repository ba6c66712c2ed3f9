"""Token files from texts of any size: in constant memory, by several processes, resumable.

All is written beside, in FOLDER.preparing: each piece of the source has its tokens in files of its
own there, which are joined at last, and FOLDER appears when it is whole. After a kill the same
command goes on with the pieces that are not there yet, and what comes out are the bytes that any
number of processes would have made without it. While it is made it needs room for its tokens twice.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tlite.data.documents import SIZE, Piece, Source, plan, read_piece, source_files
from tlite.data.manifest import (
    BEGINNINGS,
    NAME,
    TYPES,
    CorpusTokenizer,
    Manifest,
    PartFiles,
    TokenFile,
    dtype_for,
    read_manifest,
    write_file,
    write_manifest,
)
from tlite.data.prepare_encoding import encode_piece, finished, tokens_path
from tlite.data.prepare_processes import PrepareProgress, by_processes
from tlite.data.reading import pieces as read_pieces
from tlite.errors import Interrupted, UserError, disk_errors
from tlite.parallel.devices import num_cores

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

SAMPLED_PIECES = 16  # that a tokenizer is learned from, at even distances


@dataclass(frozen=True)
class Tokenizing:
    """Which tokenizer, and how to get it."""

    name: str
    """What it is called; a preparation goes on with the same only."""
    make: Callable[[Callable[[int | None], Iterable[str]]], Any]
    """From a function that gives the texts, so many bytes of the training part or all, to a
    tokenizer of `tlite.text` or `tlite.pretrained`."""


def prepare(
    source: Source,
    folder: Path,
    tokenizing: Tokenizing,
    *,
    shard_tokens: int = 0,
    processes: int = 0,
    piece_size: int = SIZE,
) -> Manifest:
    """Make a corpus of a source.

    Args:
        shard_tokens: of a token file, before the next begins; 0: one file for each part.
        processes: 0: one for each core.
        piece_size: bytes of a text or of JSON Lines that a process reads at a time.

    Raises:
        UserError: the source can't be read, the folder exists, or what was begun was another one.
    """
    if shard_tokens < 0 or processes < 0:
        raise UserError("shard_tokens and processes must not be negative")
    work = folder.parent / f"{folder.name}.preparing"
    _check_free(folder, work)
    pieces = plan(source, piece_size)
    asked = {"source": asdict(source), "files": source_files(pieces)}
    asked |= {"tokenizer": tokenizing.name, "piece_size": piece_size}
    with disk_errors(work), _work_folder(work, asked):
        manifest = _begun(work / "corpus", source, pieces, tokenizing)
        totals = _encode(source, manifest, pieces, work / "pieces", processes or num_cores())
        if source.validation_fraction and not totals["validation"]["tokens"]:
            shutil.rmtree(work)  # another fraction is another command
            raise UserError(
                f"of {totals['training']['documents']:,} documents none is in the validation part "
                f"of {source.validation_fraction:g}: raise --validation-fraction"
            )
        parts = _join(work, len(pieces), TYPES[manifest.dtype].itemsize, shard_tokens, totals)
        manifest = replace(manifest, parts=parts)
        write_manifest(work / "corpus", manifest)
        _appear(work, folder)
    return manifest


def _check_free(folder: Path, work: Path) -> None:
    """Raises a `UserError` where the folder exists; what a kill has left after that goes."""
    if os.path.lexists(folder):
        if (work / "asked.json").exists() and not (work / "corpus").exists():
            shutil.rmtree(work, ignore_errors=True)
        raise UserError(f"{folder} exists already: name another folder, or remove it")


def _appear(work: Path, folder: Path) -> None:
    """Let the corpus appear, once all of it is on the disk."""
    for path in (work / "corpus").iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    os.rename(work / "corpus", folder)
    shutil.rmtree(work, ignore_errors=True)


@contextlib.contextmanager
def _work_folder(work: Path, asked: dict[str, Any]) -> Iterator[None]:
    """The folder of this preparation alone, new or left behind by the same command.

    Raises:
        UserError: it is another one's, or another process is at it now.
    """
    content = json.dumps(asked, indent=2)
    try:
        work.mkdir(parents=True, exist_ok=True)
    except ValueError as error:  # a NUL in it
        raise UserError(f"{str(work)!r} can't be the name of a folder") from error
    with (work / "lock").open("a") as lock:
        if fcntl:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(f"another process is writing {work} now") from error
        before = work / "asked.json"
        if not before.exists():
            if {path.name for path in work.iterdir()} - {"lock", "asked.json.new"}:
                raise UserError(f"{work} is in the way: it is not what tlite prepare has begun")
        elif not (work / "corpus").exists() or before.read_text(encoding="utf-8") != content:
            if (work / "corpus").exists() and any((work / "pieces").glob("*.json")):
                raise UserError(
                    f"{work} is what another command has begun, or its source has changed: remove "
                    "it to begin anew"
                )
            for name in ("pieces", "corpus"):  # of what came to nothing, or is done
                shutil.rmtree(work / name, ignore_errors=True)
        write_file(before, content)
        for name in ("pieces", "corpus"):
            (work / name).mkdir(exist_ok=True)
        yield


def _begun(folder: Path, source: Source, pieces: list[Piece], tokenizing: Tokenizing) -> Manifest:
    """The corpus without its parts, with its tokenizer; made once, and kept for later tries."""
    if not (folder / NAME).exists():
        tokenizer = tokenizing.make(partial(texts_of, source, pieces))
        path = folder / tokenizer.file_name
        tokenizer.save(path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        size = max(len(tokenizer), tokenizer.largest_id + 1)
        of, origin = CorpusTokenizer(tokenizer.kind, str(path), digest), asdict(source)
        origin["tokenizer"] = tokenizing.name
        write_manifest(folder, Manifest(dtype_for(size), size, {}, of, tokenizer.eos_id, origin))
    return replace(read_manifest(folder), parts={})


def texts_of(source: Source, pieces: list[Piece], size: int | None) -> Iterator[str]:
    """Texts to learn a tokenizer from: all of them, or about `size` bytes of the training part.

    They are the beginnings of some pieces, at even distances over the source.
    """
    if size is None:
        for piece in pieces:
            yield from (fragment.text for fragment in read_piece(source, piece))
        return
    chosen = [piece for piece in pieces if piece.side != "validation"]
    chosen = chosen[:: max(len(chosen) // SAMPLED_PIECES, 1)]
    for piece in chosen:
        left = size // len(chosen)
        for fragment in read_piece(source, piece):
            if fragment.side == "training":
                yield fragment.text
                left -= len(fragment.text.encode())
            if left <= 0:
                break


def _encode(
    source: Source, corpus: Manifest, pieces: list[Piece], folder: Path, processes: int
) -> dict[str, Counter]:
    """Encode the pieces that are not there yet; tokens, documents and bytes of each part."""
    known = all(piece.size for piece in pieces)
    sizes = [piece.size if known else 1 for piece in pieces]
    width = TYPES[corpus.dtype].itemsize
    left = [task for task in enumerate(pieces) if finished(folder, task[0], width) is None]
    todo = sum(sizes[number] for number, _ in left)
    encode = partial(encode_piece, source, corpus, folder)
    count = len(pieces) - len(left)
    with PrepareProgress(sum(sizes), sum(sizes) - todo) as progress:
        results = by_processes(encode, left, processes)
        try:
            for (number, _), text in results:
                count += 1
                progress.add(sizes[number], text)
        except KeyboardInterrupt:
            at = f"after {count:,} of {len(pieces):,} pieces"
            raise Interrupted(
                f"interrupted {at}: the same command goes on from there", signal.SIGINT
            ) from None
        finally:
            results.close()
    totals = {part: Counter() for part in BEGINNINGS}
    for number in range(len(pieces)):
        for part, of_piece in finished(folder, number, width).items():
            totals[part].update(of_piece)
    return totals


def _join(
    work: Path, pieces: int, width: int, shard_tokens: int, totals: dict[str, Counter]
) -> dict[str, PartFiles]:
    """Write the tokens of all pieces, one behind the other, to the files of each part."""
    for path in (work / "corpus").glob("*.bin"):  # of a try that was killed
        path.unlink()
    parts = {}
    for part, found in totals.items():
        paths = (tokens_path(work / "pieces", number, part) for number in range(pieces))
        chunks = (chunk for path in paths if path.exists() for chunk in read_pieces(path))
        files, left = [], next(chunks, b"")
        while left:
            shard = f"-{len(files):05d}" if shard_tokens else ""
            name, size, digest = f"{BEGINNINGS[part]}{shard}.bin", 0, hashlib.sha256()
            room = (shard_tokens or found["tokens"]) * width
            with (work / "corpus" / name).open("wb") as file:
                while chunk := left[: room - size]:
                    file.write(chunk)
                    digest.update(chunk)
                    size, left = size + len(chunk), left[len(chunk) :] or next(chunks, b"")
            files.append(TokenFile(name, size // width, digest.hexdigest()))
        if files:
            parts[part] = PartFiles(tuple(files), found["documents"], found["bytes"])
    return parts
