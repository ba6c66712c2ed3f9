"""Token files of a source of any size, in constant memory; an interrupted preparation resumes.

The corpus is written to FOLDER.preparing, which is renamed when it is complete. After each unit of
the source progress.json records the sizes of the token files; the same command cuts them to these
sizes and continues with the next unit, so a kill does not change their bytes. `tokenizers` encodes
the texts of a batch in parallel, by as many threads as there are cores (RAYON_NUM_THREADS).
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

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
from tlite.data.documents import (
    UNIT_BYTES,
    Chunk,
    Source,
    Unit,
    append_newline,
    list_units,
    sample_texts,
    source_fingerprint,
)
from tlite.data.reading import read_json
from tlite.errors import Interrupted, UserError, disk_errors
from tlite.text import load_tokenizer
from tlite.text.tokenizer import load_hf_tokenizer, tokenizer_errors

PROGRESS = "progress.json"
BATCH_SIZE = 2**20  # characters that are encoded together
CONTEXT_LETTER = "a"  # stands for the text before a chunk

Texts = Callable[[int | None], Iterable[str]]
Encode = Callable[[list[Chunk]], Iterable[np.ndarray]]


def prepare(
    source: Source,
    folder: Path,
    tokenizer: str,
    make_tokenizer: Callable[[Texts], Any],
    unit_bytes: int = UNIT_BYTES,
) -> Manifest:
    """Write a corpus of the documents of a source, and return its manifest.

    Args:
        tokenizer: its name; only the same command resumes a preparation.
        make_tokenizer: function from `sample_texts` of the units to a tokenizer of `tlite.text` or
            `tlite.pretrained`.
        unit_bytes: size of a unit of text or JSON Lines.

    Raises:
        UserError: the source can't be read, the folder exists, or another command has begun it.
    """
    _check_folder(folder, Path(source.name))
    units = list_units(source, unit_bytes)
    request = {"source": asdict(source), "files": source_fingerprint(source, units)}
    request |= {"tokenizer": tokenizer, "unit_bytes": unit_bytes}
    work = folder.parent / f"{folder.name}.preparing"
    with disk_errors(work), _lock_folder(work):
        progress = _open_progress(work, request)
        if not (work / MANIFEST).exists():
            _save_tokenizer(work, make_tokenizer(partial(sample_texts, units)), tokenizer, source)
        manifest = read_manifest(work)
        totals = progress["totals"]
        writers = {split: SplitWriter(work, split, manifest, totals[split]) for split in totals}
        _encode(units, manifest, writers, work / PROGRESS, progress)
        splits = {split: w.describe() for split, w in writers.items() if w.totals["tokens"]}
        if source.validation_fraction and "validation" not in splits:
            shutil.rmtree(work)  # another fraction is another command
            raise UserError("no document is in the validation split: raise --validation-fraction")
        write_manifest(work, manifest := replace(manifest, splits=splits))
        os.rename(work, folder)
        (folder / PROGRESS).unlink()
        return manifest


def _check_folder(folder: Path, source: Path) -> None:
    """Raise a `UserError` if the folder exists or is inside the source, which would read it."""
    if os.path.lexists(folder):
        raise UserError(f"{folder} exists already: name another folder, or remove it")
    if source.is_dir() and folder.resolve().is_relative_to(source.resolve()):
        raise UserError(f"{folder} is inside {source}, which is read: name a folder elsewhere")


@contextlib.contextmanager
def _lock_folder(work: Path) -> Iterator[None]:
    """Create the folder, and lock it until the context ends; another process has it: UserError."""
    work.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(work, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise UserError(f"another process is writing {work} now") from error
    finally:
        os.close(descriptor)


def _open_progress(work: Path, request: dict[str, Any]) -> dict[str, Any]:
    """Return the saved progress of this request: the finished units, and totals by split."""
    totals = {split: {"tokens": 0, "documents": 0, "bytes": 0} for split in PREFIXES}
    progress = {"request": request, "units": 0, "totals": totals}
    if not (work / PROGRESS).exists():
        if {path.name for path in work.iterdir()} - {f"{PROGRESS}.new"}:
            raise UserError(f"{work} is in the way: tlite prepare has not created it")
    elif (saved := read_json(work / PROGRESS))["request"] == request:
        return saved
    elif saved["units"]:
        raise UserError(
            f"{work} was begun by another command, or its source has changed: remove it to start "
            "anew"
        )
    for path in work.iterdir():  # of a request that failed at its first unit
        path.unlink()
    write_file(work / PROGRESS, json.dumps(progress))
    return progress


def _save_tokenizer(work: Path, tokenizer: Any, name: str, source: Source) -> None:
    """Write the tokenizer, and a manifest without splits."""
    path = work / tokenizer.file_name
    tokenizer.save(path)
    content = path.read_bytes()
    with path.open("rb") as file:
        os.fsync(file.fileno())
    reference = CorpusTokenizer(tokenizer.kind, str(path), hashlib.sha256(content).hexdigest())
    size = max(len(tokenizer), tokenizer.max_id + 1)
    origin = asdict(source) | {"tokenizer": name}
    manifest = Manifest(dtype_for(size), size, {}, reference, tokenizer.eos_id, origin)
    write_manifest(work, manifest)


# Token files


class SplitWriter:
    """Append documents to the token file of a split.

    Args:
        totals: tokens, documents and bytes of text in the file; updated.
    """

    def __init__(self, work: Path, split: str, manifest: Manifest, totals: dict[str, int]):
        self.path, self.totals = work / f"{PREFIXES[split]}.bin", totals
        self.dtype, self.buffer = DTYPES[manifest.dtype], []
        self.end = np.array([] if manifest.end_id is None else [manifest.end_id], self.dtype)
        if self.path.exists():  # cut what was appended after the totals were saved
            os.truncate(self.path, totals["tokens"] * self.dtype.itemsize)

    def add(self, chunk: Chunk, ids: np.ndarray) -> None:
        """Buffer the ids (T,) of a chunk."""
        self.buffer += [ids.astype(self.dtype), *([self.end] if chunk.ends else [])]
        self.totals["documents"] += chunk.ends
        self.totals["bytes"] += len(chunk.text.encode())

    def flush(self) -> None:
        """Write the buffered ids durably."""
        if self.buffer:
            tokens, self.buffer = np.concatenate(self.buffer), []
            with self.path.open("ab") as file:
                file.write(tokens.tobytes())
                file.flush()
                os.fsync(file.fileno())
            self.totals["tokens"] += len(tokens)

    def describe(self) -> SplitFiles:
        """Return the description of the file for the manifest."""
        with self.path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        file = TokenFile(self.path.name, self.totals["tokens"], digest)
        return SplitFiles((file,), self.totals["documents"], self.totals["bytes"])


# Texts to tokens


def _encode(
    units: Sequence[Unit],
    manifest: Manifest,
    writers: dict[str, SplitWriter],
    path: Path,
    progress: dict[str, Any],
) -> None:
    """Append the tokens of the remaining units to the files, and print the progress."""
    done, number, encode = progress["units"], len(units), load_encoder(manifest.tokenizer)
    try:
        for unit in units[done:]:
            chunks = unit.read()
            chunks = map(append_newline, chunks) if manifest.end_id is None else chunks
            for batch in _batches(chunks):
                for chunk, ids in zip(batch, encode(batch), strict=True):
                    writers[chunk.split].add(chunk, ids)
                for writer in writers.values():
                    writer.flush()
            done = progress["units"] = done + 1
            write_file(path, json.dumps(progress))
            if 10 * done // number > 10 * (done - 1) // number:
                print(f"encoded {done:,} of {number:,} units", flush=True)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted after {done:,} of {number:,} units: the same command resumes",
            signal.SIGINT,
        ) from None


def _batches(chunks: Iterator[Chunk]) -> Iterator[list[Chunk]]:
    """Yield the chunks in batches of about BATCH_SIZE characters."""
    batch, size = [], 0
    for chunk in chunks:
        batch.append(chunk)
        size += len(chunk.text)
        if size >= BATCH_SIZE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def load_encoder(reference: CorpusTokenizer) -> Encode:
    """Return the function from chunks to their ids (T,) of a corpus's tokenizer.

    "<|endoftext|>" typed in a document is encoded as text. Some tokenizers put a token before each
    text, Llama's the "▁" of a word: a chunk that continues a document is encoded behind a letter,
    whose tokens are left out.
    """
    if reference.kind != "pretrained":
        tokenizer = load_tokenizer(reference.path)
        return lambda batch: [tokenizer.encode(chunk.text) for chunk in batch]
    library_tokenizer = load_hf_tokenizer(reference.path)
    library_tokenizer.no_truncation()
    library_tokenizer.no_padding()
    library_tokenizer.encode_special_tokens = True

    def encode_texts(texts: list[str]) -> list[list[int]]:
        with tokenizer_errors():
            encodings = library_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def encode(batch: list[Chunk]) -> Iterator[np.ndarray]:
        rows = encode_texts([("" if c.begins else CONTEXT_LETTER) + c.text for c in batch])
        for chunk, ids in zip(batch, rows, strict=True):
            if not chunk.begins:
                is_separate = ids[: len(letter)] == letter  # else the chunk begins within a word
                ids = ids[len(letter) :] if is_separate else encode_texts([chunk.text])[0]
            yield np.array(ids, np.uint32)

    (letter,) = encode_texts([CONTEXT_LETTER])
    return encode
