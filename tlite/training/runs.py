"""A run is a folder: config.json, tokenizer, metrics.jsonl, examples.npz, checkpoints/, samples/,
plots/."""

import datetime
import errno
import hashlib
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlite.config import from_dict, to_dict
from tlite.errors import UserError, command, disk_errors, system_reason
from tlite.terminal import printable
from tlite.training.folders import newest
from tlite.training.provenance import changed_since, made_with


@dataclass(frozen=True)
class Run:
    """The paths and the config of a run."""

    folder: Path
    experiment: Any
    data: dict
    """What the data was, its SHA-256 above all."""

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def samples(self) -> Path:
        return self.folder / "samples"

    @property
    def plots(self) -> Path:
        return self.folder / "plots"


def new_folder(name: str, folder: Path | None = None, root: Path = Path("runs")) -> Path:
    """A path for a run, where nothing is yet: `folder`, or runs/<name>/<yyyymmdd-HHMMSS>.

    Raises:
        UserError: it exists already, or can't be made.
    """
    path = folder or root / name / datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent):
            pass  # so that a folder that can't be made is told early
        if folder is not None and os.path.lexists(folder):
            raise UserError(
                f"the run folder {folder} exists already: name another, "
                f"or continue it with {command('train', '--resume', folder)}"
            )
    except (OSError, ValueError) as error:
        reason = system_reason(error) or "there can be no such name"
        raise UserError(f"can't make the run folder {path}: {reason}") from error
    return path if folder is not None else next(filter(_is_free, numbered(path)))


def numbered(path: Path) -> Iterator[Path]:
    """path, path-2, path-3, ..."""
    yield path
    yield from (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))


def _is_free(path: Path) -> bool:
    return not os.path.lexists(path)


def create_run(
    folder: Path,
    experiment,
    data: dict,
    tokenizer,
    fill: Callable[[Run], None] = lambda run: None,
    *,
    exactly: bool = True,
) -> Run:
    """Write a run beside `folder`, and let it appear there whole.

    Args:
        fill: writes what else the run has, while it still lies beside.
        exactly: not under the next number, if a run has appeared there meanwhile.

    Raises:
        UserError: the config could not be read back, the disk is full, or a run is there by now.
    """
    content = kept(experiment)

    def write(temporary: Path) -> None:
        (temporary / "checkpoints").mkdir()
        path = temporary / tokenizer.file_name
        tokenizer.save(path)
        token_file = {"file": path.name, "sha256": _sha256(path)}
        whole = {"experiment": content, "data": data, "tokenizer": token_file}
        began = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
        whole = json.dumps(whole | {"made_with": made_with(), "began": began}, indent=2)
        (temporary / "config.json").write_text(whole, encoding="utf-8")
        fill(Run(temporary, experiment, data))

    return Run(create_folder(folder, write, exactly=exactly), experiment, data)


def kept(experiment) -> dict[str, Any]:
    """An experiment as JSON that is read back as the same.

    Raises:
        UserError: there is none.
    """
    content = json.loads(_to_json(to_dict(experiment)))
    try:
        again = to_dict(from_dict(type(experiment), content))
    except ValueError as error:
        raise UserError(f"the run could never be opened again: {error}") from error
    if json.loads(_to_json(again)) != content:
        raise UserError("the run could never be opened again: config.json would say otherwise")
    return content


def rewrite_config(run: Run) -> None:
    """Let config.json hold the run's experiment, whenever a kill comes: the one before, or this.

    Raises:
        UserError: it can't be read, or written.
    """
    path, content = run.folder / "config.json", kept(run.experiment)
    with disk_errors(run.folder):
        replace_json(path, read_config(path) | {"experiment": content})


def replace_json(path: Path, content: dict) -> None:
    """Let a file hold this, whenever a kill comes: what it held before, or all of this."""
    replace_file(path, json.dumps(content, indent=2).encode())


def replace_file(path: Path, content: bytes) -> None:
    """As `replace_json`, of any content."""
    temporary = path.with_name(f".{path.name}.new")
    with disk_errors(path), temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        temporary.replace(path)


def create_folder(folder: Path, write: Callable[[Path], None], *, exactly: bool) -> Path:
    """Let what is written beside appear whole: as `folder`, or unless `exactly` the next number."""
    temporary = None
    try:
        with disk_errors(folder):
            temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
            temporary.chmod(0o777 & ~_umask())  # not only for this user, as a temporary one is
            write(temporary)
            return _appear(temporary, folder, exactly)
    except BaseException:
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)
        raise


def _appear(temporary: Path, folder: Path, exactly: bool) -> Path:
    """Rename a folder to where it belongs, or to the next number."""
    for path in [folder] if exactly else numbered(folder):
        try:
            return temporary.rename(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) or exactly:
                raise


def _to_json(values: dict) -> str:
    try:
        return json.dumps(values)
    except (TypeError, ValueError) as error:
        raise UserError(f"the run could never be opened again: {error}") from error


def _umask() -> int:
    os.umask(mask := os.umask(0))
    return mask


def open_run(folder: Path, kind: Any) -> Run:
    """The run in a folder that `create_run` made; a warning where it was made otherwise than now.

    Args:
        kind: the type of its experiment, or a union of types.

    Raises:
        UserError: there is no such folder, it isn't a run's, or can't be read.
    """
    path = folder / "config.json"
    try:
        if not path.is_file():
            what = (
                "has no config.json: it is not a run folder"
                if folder.exists()
                else "does not exist"
            )
            raise UserError(f"{folder} {what}{_inside(folder) or _nearby(folder)}")
        content = read_config(path)
        saved = content["experiment"].get("kind")
        if isinstance(kind, type) and saved != kind.__name__:
            raise UserError(f"{path} is of the run of a {saved}, not of a {kind.__name__}")
        token_file = folder / Path(content["tokenizer"]["file"]).name
        # What is no file, a pipe say, would be waited for.
        if not token_file.is_file() or _sha256(token_file) != content["tokenizer"]["sha256"]:
            raise UserError(f"{token_file} is not the one that the run was trained with")
        run = Run(folder, from_dict(kind, content["experiment"]), content["data"])
    except OSError as error:
        raise UserError(f"can't read {error.filename or path}: {system_reason(error)}") from error
    except ValueError as error:
        raise UserError(f"{path} is not a config that this tlite can read: {error}") from error
    # Runs from before November 2026 do not say what they were made with.
    if (then := content.get("made_with")) and (changed := changed_since(then)):
        warning = f"warning: since {folder} was made {changed}: results may differ"
        print(printable(warning), file=sys.stderr)
    return run


def read_config(path: Path) -> dict:
    """The content of config.json, with all of its parts.

    Raises:
        ValueError: it is not what `create_run` wrote.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno} is not JSON") from error
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    for part, names in {
        "experiment": ("kind",),
        "data": (),
        "tokenizer": ("file", "sha256"),
    }.items():
        values = content.get(part) if isinstance(content, dict) else None
        if not isinstance(values, dict) or not all(isinstance(values.get(n), str) for n in names):
            raise ValueError(f"it lacks {' and '.join(names) or 'the sizes'} of the {part}")
    if "\0" in content["tokenizer"]["file"]:
        raise ValueError("no file can have the name of the tokenizer's")
    made = content.get("made_with", {})
    if not isinstance(made, dict) or not all(isinstance(v, str) for v in made.values()):
        raise ValueError("made_with is not a table of versions")
    return content


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _inside(folder: Path) -> str:
    """The runs of a study, where the folder is one."""
    if not (folder / "study.json").is_file():
        return ""
    runs = sorted(path.parent.name for path in folder.glob("[!.]*/config.json"))
    named = f"one of {', '.join(runs[:20])}{', ...' if runs[20:] else ''}" if runs else "none yet"
    return f", but a study of runs: name {named}"


def _nearby(folder: Path) -> str:
    try:
        return f"; the newest run is {newest()}"
    except UserError:
        return ""
