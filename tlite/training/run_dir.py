"""A run is a folder of data; user code in it is executed only with the user's consent.

config.json and the tokenizer's file rebuild the model; code/ has copies of the files with the
user's functions that it needs (`tlite.user_code`). metrics.jsonl has a line for each step and
validation, examples.npz each example's scores in the last one, samples/ and plots/ what they say.
checkpoints/ holds the best and the last two, or `--max-to-keep`; resuming moves a damaged one to
checkpoints/damaged-<step> and deletes none. Where asked for: tensorboard/ or wandb/
(`tlite follow`), profile/ (`--profile`, for XProf, TensorBoard and Perfetto), inspection/
(`tlite inspect`).

Which there are, and how far they have come, is read from their small files alone: JAX is not
imported, no experiment is made, and what is damaged is listed as that.
"""

import contextlib
import datetime
import hashlib
import itertools
import json
import os
import platform
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import tlite
import tlite.distributed as distributed
from tlite.config import from_dict, to_dict
from tlite.errors import CollectiveError, UserError, command, disk_errors, printable, system_reason
from tlite.training.config import TrainingConfig
from tlite.user_code import allow_code, write_code

LATEST, ROOT = "latest", Path("runs")
RUN, STUDY, CODE = "config.json", "study.json", "code"
MARKS = {RUN, STUDY, "metrics.jsonl", "checkpoints"}
"""What a run or a study has at least one of."""
UNREADABLE = (
    OSError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError, RecursionError
)  # fmt: skip
"""What a file of JSON raises that is damaged, or of something else."""

PACKAGE = Path(__file__).parents[1]
ROOMS = (
    "functional", "models", "baselines", "text", "data", "pretrained", "decoding", "training",
    "runs",
)  # fmt: skip
"""Whose source decides a run's numbers."""
METRICS = "metrics/metrics"
"""JSON file of a checkpoint with its score, where Orbax's manager writes it."""
NO_SCORE = 1e30
"""Score of a checkpoint that was not validated, or was not finite: JSON has no NaN."""
LIBRARIES = "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"
"""The first four decide them too."""


@dataclass(frozen=True)
class RunDir:
    """The paths and the config of a run."""

    path: Path
    experiment: Any
    data: dict
    """What the data was, its SHA-256 above all."""

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def samples(self) -> Path:
        return self.path / "samples"

    @property
    def plots(self) -> Path:
        return self.path / "plots"


class Found(NamedTuple):
    """A run or a study, as a list tells it."""

    folder: Path
    began: datetime.datetime
    """In local time, as config.json says, or a study's first."""
    experiment: str = ""
    kind: str = "damaged"
    """generator, classifier, translator, study, pretrained; damaged."""
    done: int = 0
    """The step of the last checkpoint; of a study the variants at their last step."""
    of: int = 0
    """Steps, or variants, in all."""
    best: str = ""
    """What the best validation has found: "loss 1.0802"."""


def find_runs(root: Path, depth: int | None = None) -> list[Found]:
    """The runs and studies below a folder, newest first; a study's own runs are not among them.

    Args:
        depth: 1 for those in the folder itself only, and so on; however deep unless given.
    """
    found = []
    for place, folders, files in os.walk(root):
        marked = MARKS & {*folders, *files}
        if marked or (depth and len(Path(place).relative_to(root).parts) >= depth):
            folders.clear()
        if marked and (run := describe(Path(place))).kind != "pretrained":
            found.append(run)
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(found, key=lambda run: (run.began, run.folder), reverse=True)


def newest(
    root: Path, kind: str = "", depth: int | None = None, *, studies: bool = False
) -> Path | None:
    """The newest run below a folder that is not damaged.

    Args:
        kind: generator, say; any kind unless given.
        depth: as for `find_runs`.
        studies: a study counts as a run.
    """
    others = {"damaged"} if studies else {"damaged", "study"}
    runs = find_runs(root, depth)
    return next((r.folder for r in runs if r.kind == kind or not (kind or r.kind in others)), None)


def find_run(folder: str | Path, kind: str = "", *, studies: bool = False) -> Path:
    """The run in a folder, or the newest if it is a folder of runs.

    `latest` is the newest in ./runs, whatever ./latest is.

    Args:
        kind: generator, say; any kind unless given.
        studies: a study counts as a run.

    Raises:
        UserError: there is none, or the name is empty, as of a variable that was not set.
    """
    if str(folder) == LATEST:
        if found := newest(ROOT, kind, studies=studies):
            return found
        which = f"{kind}'s run" if kind else "run"
        raise UserError(f"there is no latest {which}: {Path.cwd() / ROOT} has none")
    if folder == "":
        raise UserError("the run's folder has an empty name: name one, or say latest")
    check_local(folder)
    if not os.path.isdir(folder):
        return Path(folder)
    return newest(Path(folder), kind, depth=2, studies=studies) or Path(folder)


def check_local(folder: str | Path) -> None:
    """Raise a `UserError` for a URL: runs are written to local or mounted file systems only."""
    if re.match(r"[a-z][a-z0-9+.-]*:/", str(folder), re.IGNORECASE):  # a Path has one slash only
        raise UserError(f"the run folder {folder} is a URL: only folders are supported")


def describe(folder: Path) -> Found:
    """What a folder's files say."""
    study = (folder / STUDY).is_file()
    configs = [*folder.glob(f"[!.]*/{RUN}")] if study else [*folder.glob(RUN)]
    began = datetime.datetime.fromtimestamp(min(map(_began, configs or [folder])))
    try:
        content = _read(folder / (STUDY if study else RUN))
        if "model_type" in content:
            return Found(folder, began, kind="pretrained")
        if not study:
            return _run(folder, began, experiment_fields(content["experiment"]))
        runs = [describe(folder / variant["run"]) for variant in content["variants"]]
        ended = sum(0 < run.of <= run.done for run in runs)
        return Found(folder, began, str(content["name"]), "study", ended, len(runs))
    except UNREADABLE:
        return Found(folder, began)


def experiment_fields(saved: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an experiment in config.json, also of a user's class, and its "kind"."""
    if saved.get("kind") != "class":
        return saved
    return saved["fields"] | {"kind": saved["name"].rpartition(".")[2]}


def _run(folder: Path, began: datetime.datetime, experiment: dict) -> Found:
    training = from_dict(TrainingConfig, experiment["training"])
    checkpoints, scores, select = folder / "checkpoints", [], training.best_metric
    saved = numbered_folders(checkpoints)
    for step in training.eval_steps(saved):
        with contextlib.suppress(*UNREADABLE):  # it is damaged
            scores.append(float(_read(checkpoints / f"{step}" / METRICS)["score"]))
    best = min((score for score in scores if score < NO_SCORE), default=None)
    told = "" if best is None else f"{select} {best if select == 'loss' else -best:.4f}"
    kind = str(experiment["kind"]).removesuffix("Experiment").lower()
    done = saved[-1] if saved else 0
    return Found(folder, began, str(experiment["name"]), kind, done, training.steps, told)


def _began(path: Path) -> float:
    """When a run began, in seconds, by its config; by the file's time where that does not say."""
    try:
        return datetime.datetime.fromisoformat(_read(path)["began"]).timestamp()
    except UNREADABLE:
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
        return 0.0


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def numbered_folders(folder: Path) -> list[int]:
    """What is called by a number, as checkpoints are by their steps, the least first."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def new_folder(name: str, folder: Path | None = None, root: Path = ROOT) -> Path:
    """A path for a run, where nothing is yet: `folder`, or runs/<name>/<yyyymmdd-HHMMSS>.

    Raises:
        UserError: it exists already, or can't be made.
    """
    check_local(folder or "")
    path = folder or root / name / datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent):
            pass  # so that a folder that can't be made is told early
    except OSError as error:
        raise UserError(f"can't make the run folder {path}: {system_reason(error)}") from error
    if folder is None:
        return next_free(path)
    if os.path.lexists(folder):
        raise UserError(
            f"the run folder {folder} exists already: name another, "
            f"or continue it with {command('train', '--resume', folder)}"
        )
    return folder


def check_shared(folder: Path) -> None:
    """Raise a `CollectiveError` in all processes if one does not see process 0's run folder."""
    if distributed.process_count() == 1:
        return
    path = folder / ".shared"

    def write() -> str:
        replace_file(path, token := secrets.token_hex())
        return token

    def sees(token: str) -> bool:
        for _ in range(10):  # a directory of NFS may be cached
            with contextlib.suppress(OSError):
                if path.read_text() == token:
                    return True
            time.sleep(0.5)
        return False

    found = distributed.all_gather(
        "shared folder", sees(distributed.broadcast_from_process0(write))
    )
    distributed.broadcast_from_process0(lambda: path.unlink(missing_ok=True))
    if not all(found):
        raise CollectiveError(
            f"process {found.index(False)} does not see the run folder {folder} of process 0: all "
            "processes need the same working directory on a file system that they share"
        )


def next_free(path: Path, taken: Callable[[Path], bool] = os.path.lexists) -> Path:
    """The first of path, path-2, path-3, ... that is not taken: where nothing is."""
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(free for free in itertools.chain([path], others) if not taken(free))


def create_run(folder: Path, experiment, data: dict, tokenizer, *, exactly: bool = True) -> RunDir:
    """Write a run beside `folder`, and let it appear there whole.

    Args:
        exactly: not under the next number, if a run has appeared there meanwhile.

    Raises:
        UserError: the config could not be read back, the disk is full, or a run is there by now.
    """
    content = {"experiment": kept(experiment), "data": data}

    def write(temporary: Path) -> None:
        (temporary / "checkpoints").mkdir()
        write_code(temporary / CODE, content["experiment"])
        path = temporary / tokenizer.file_name
        tokenizer.save(path)
        began = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
        more = {
            "tokenizer": {"file": path.name, "sha256": sha256(path)},
            "made_with": {"tlite": tlite.__version__, "commit": _commit()} | _deciding(),
            "began": began,
        }
        (temporary / RUN).write_text(json.dumps(content | more, indent=2), encoding="utf-8")

    return RunDir(create_folder(folder, write, exactly=exactly), experiment, data)


def kept(experiment) -> dict[str, Any]:
    """An experiment as JSON that is read back as the same.

    Raises:
        UserError: there is none.
    """
    try:
        content = json.loads(json.dumps(to_dict(experiment)))
        again = json.loads(json.dumps(to_dict(from_dict(type(experiment), content))))
    except (TypeError, ValueError) as error:
        raise UserError(f"the run could never be opened again: {error}") from error
    if again != content:
        raise UserError("the run could never be opened again: config.json would say otherwise")
    return content


def replace_file(path: Path, content: bytes | str | dict) -> None:
    """Let a file hold this, a dict as JSON, whenever a kill comes: what was there, or all of it."""
    temporary = path.with_name(f".{path.name}.new")
    if isinstance(content, dict):
        content = json.dumps(content, indent=2)
    content = content.encode() if isinstance(content, str) else content
    with disk_errors(path), temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        temporary.replace(path)


def create_folder(folder: Path, write: Callable[[Path], None], *, exactly: bool) -> Path:
    """Let what is written beside appear whole: as `folder`, or unless `exactly` the next number."""
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        with disk_errors(folder):
            temporary.mkdir()
            write(temporary)
            return temporary.rename(folder if exactly else next_free(folder))
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def open_run(folder: Path, kind: Any, *, trust: bool = False) -> RunDir:
    """The run in a folder that `create_run` made; a warning where it was made otherwise than now.

    Args:
        kind: the type of its experiment, or a union of types.
        trust: execute the run's copy of user code, even if this user has not trained with it.

    Raises:
        UserError: there is no such folder, it isn't a run's, or can't be read.
    """
    path = folder / RUN
    try:
        if not path.is_file():
            raise UserError(f"{folder} {_lack_of_run(folder)}")
        content = read_config(path)
        saved = content["experiment"]["kind"]
        if isinstance(kind, type) and saved not in (kind.__name__, "class"):
            raise UserError(f"{path} is of the run of a {saved}, not of a {kind.__name__}")
        token_file = folder / Path(content["tokenizer"]["file"]).name
        # What is no file, a pipe say, would be waited for.
        if not token_file.is_file() or sha256(token_file) != content["tokenizer"]["sha256"]:
            raise UserError(f"{token_file} is not the one that the run was trained with")
        with allow_code(folder / CODE, trust=trust):
            run = RunDir(folder, from_dict(kind, content["experiment"]), content["data"])
        if isinstance(kind, type) and not isinstance(run.experiment, kind):
            name = type(run.experiment).__name__
            raise UserError(f"{path} is of the run of a {name}, not of a {kind.__name__}")
    except OSError as error:
        raise UserError(f"can't read {error.filename or path}: {system_reason(error)}") from error
    except ValueError as error:
        raise UserError(f"{path} is not a config that this tlite can read: {error}") from error
    if changed := changed_since(content["made_with"]):
        warning = f"warning: since {folder} was made {changed}: results may differ"
        print(printable(warning), file=sys.stderr)
    return run


def _lack_of_run(folder: Path) -> str:
    what = "has no config.json: it is not a run folder" if folder.exists() else "does not exist"
    if (folder / STUDY).is_file():
        runs = ", ".join(sorted(path.parent.name for path in folder.glob(f"[!.]*/{RUN}")))
        return f"{what}, but a study of runs: name {f'one of {runs}' if runs else 'none yet'}"
    near = newest(ROOT)
    return f"{what}; the newest run is {near}" if near else what


def read_config(path: Path) -> dict:
    """The content of config.json, with all of its parts.

    Raises:
        ValueError: it is not what `create_run` wrote.
    """
    try:
        content = _read(path)
        texts = [content["experiment"]["kind"], *map(content["tokenizer"].get, ("file", "sha256"))]
        texts += content["made_with"].values()
        fits = isinstance(content["data"], dict) and all(isinstance(text, str) for text in texts)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno} is not JSON") from error
    except (LookupError, TypeError, AttributeError, RecursionError):
        fits = False
    if not fits:
        raise ValueError("it has not all parts of a run's")
    return content


def sha256(path: Path) -> str:
    """Of a file's bytes, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def changed_since(then: dict[str, str]) -> str:
    """Return the changes in source and libraries that decide numbers, as a phrase; or ""."""
    now = _deciding()
    changed = [name for name in now if then.get(name) != now[name]]
    phrases = [f"{n} was {then.get(n)} and is {now[n]}" for n in LIBRARIES[:4] if n in changed]
    if rooms := ", ".join(name for name in changed if name.startswith("tlite/")):
        commit = f" since commit {then['commit'][:12]}" if then.get("commit") else ""
        phrases = [f"the source in {rooms} has changed{commit}", *phrases]
    return "; ".join(phrases)


def _deciding() -> dict[str, str]:
    versions = {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}
    return versions | {f"tlite/{room}": _source_hash(PACKAGE / room) for room in ROOMS}


def _source_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _commit() -> str:
    """The commit of a checkout, with "+" where its files differ; "" elsewhere."""
    if not (PACKAGE.parent / ".git").exists():
        return ""
    describe = "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+"
    git = ["git", "-C", str(PACKAGE.parent), *describe]
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # no git, or not allowed
        said = subprocess.run(git, capture_output=True, text=True, timeout=10, check=True)
        return said.stdout.strip()
    return ""
