"""Token files from texts of any size: in constant memory, by several processes, resumable.

All is written beside, in FOLDER.preparing, and FOLDER appears when it is whole. The same command
goes on with what a kill has left behind; what comes out are the bytes that any number of processes
would have made without it.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tlite.data.documents import SIZE, Piece, Source, plan, read_piece, source_files
from tlite.data.manifest import (
    CorpusTokenizer,
    Manifest,
    dtype_for,
    write_manifest,
)
from tlite.data.prepare_encoding import Coding, encode_piece
from tlite.data.prepare_journal import Growing
from tlite.data.prepare_processes import in_order
from tlite.data.prepare_progress import PrepareProgress
from tlite.errors import Interrupted, UserError, disk_errors
from tlite.parallel.devices import num_cores

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None

SAMPLED_PIECES = 16  # that a tokenizer is learned from, at even distances

REST = {"lock", "asked.json", "journal", "pieces", "tokenizer.json"}
"""What is left of the work folder when the corpus has been moved out of it."""


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
    if os.path.lexists(folder):
        if work.is_dir() and {path.name for path in work.iterdir()} <= REST:
            shutil.rmtree(work, ignore_errors=True)  # a kill has come after the corpus was whole
        raise UserError(f"{folder} exists already: name another folder, or remove it")
    pieces = plan(source, piece_size)
    asked = {
        "source": asdict(source),
        "files": source_files(pieces),
        "tokenizer": tokenizing.name,
        "shard_tokens": shard_tokens,
        "piece_size": piece_size,
    }
    with disk_errors(work), _work_folder(work, asked):
        inside = work / "corpus"
        coding, tokenizer = _coding(work, inside, source, pieces, tokenizing)
        growing = Growing(inside, work / "journal", coding.dtype, shard_tokens)
        _encode(source, coding, pieces, growing, work / "pieces", processes or num_cores())
        if source.validation_fraction and not growing.state.parts["validation"].tokens:
            shutil.rmtree(work)
            raise UserError(
                f"of {growing.state.parts['training'].documents:,} documents none is in the "
                f"validation part of {source.validation_fraction:g}: raise --validation-fraction"
            )
        manifest = _manifest(inside, source, tokenizing, tokenizer, coding, growing)
        write_manifest(inside, manifest)
        os.rename(inside, folder)
        shutil.rmtree(work, ignore_errors=True)
    return manifest


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
        elif before.read_text(encoding="utf-8") != content:
            if (work / "journal").exists():
                raise UserError(
                    f"{work} is what another command has begun, or its source has changed: remove "
                    "it to begin anew"
                )
            for path in (work / "corpus", work / "tokenizer.json"):  # nothing was finished
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        _write(before, content)
        shutil.rmtree(work / "pieces", ignore_errors=True)
        for name in ("pieces", "corpus"):
            (work / name).mkdir(exist_ok=True)
        yield


def _write(path: Path, content: str) -> None:
    """Write a file that is there whole, or not at all."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(content, encoding="utf-8")
    new.replace(path)


def _coding(
    work: Path, inside: Path, source: Source, pieces: list[Piece], tokenizing: Tokenizing
) -> tuple[Coding, dict[str, Any]]:
    """How to encode, and what the tokenizer is; made once, and kept for later tries."""
    kept = work / "tokenizer.json"
    if not kept.exists():
        tokenizer = tokenizing.make(partial(texts_of, source, pieces))
        path = inside / tokenizer.file_name
        tokenizer.save(path)
        size = max(len(tokenizer), tokenizer.largest_id + 1)
        about = {
            "kind": tokenizer.kind,
            "file": path.name,
            "sha256": _sha256(path),
            "vocabulary_size": size,
            "end_id": tokenizer.eos_id,
        }
        _write(kept, json.dumps(about))
    about = json.loads(kept.read_text(encoding="utf-8"))
    dtype = dtype_for(about["vocabulary_size"])
    path = inside / about["file"]
    return Coding(about["kind"], str(path.resolve()), dtype, about["end_id"]), about


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
    source: Source,
    coding: Coding,
    pieces: list[Piece],
    growing: Growing,
    folder: Path,
    processes: int,
) -> None:
    """Encode the pieces that are not there yet, and put one behind the other."""
    left = pieces[growing.state.pieces :]
    work = partial(encode_piece, source, coding, folder.resolve())
    done = growing.state.pieces
    with PrepareProgress(pieces, done) as progress:
        results = in_order(work, left, min(processes, max(len(left), 1)))
        try:
            for piece, encoded in zip(left, results, strict=True):
                growing.append(encoded)
                progress.advance(piece.size, sum(encoded.bytes.values()))
        except KeyboardInterrupt:
            at = f"after {growing.state.pieces:,} of {len(pieces):,} pieces"
            raise Interrupted(
                f"interrupted {at}: the same command goes on from there", signal.SIGINT
            ) from None
        finally:
            results.close()


def _manifest(
    inside: Path,
    source: Source,
    tokenizing: Tokenizing,
    tokenizer: dict[str, Any],
    coding: Coding,
    growing: Growing,
) -> Manifest:
    files = {part: list(growing.files(part)) for part in growing.state.parts}
    sha256 = {name: _sha256(inside / name) for part in files.values() for name, _ in part}
    return Manifest(
        coding.dtype,
        tokenizer["vocabulary_size"],
        {part: growing.part(part, sha256) for part, found in files.items() if found},
        CorpusTokenizer(coding.kind, str(inside / tokenizer["file"]), tokenizer["sha256"]),
        coding.end_id,
        asdict(source) | {"tokenizer": tokenizing.name},
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
