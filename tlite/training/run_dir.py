"""Run folders: create, open and find them.

`config.json` and the tokenizer's file rebuild the model; `code/` has copies of the user's files
that it needs (`tlite.user_code`). `metrics.jsonl` has a line for each training step and validation,
`examples.npz` the scores of each validation example, `checkpoints/` the best and the last
checkpoints; resuming moves a damaged one to `checkpoints/damaged-STEP`. `samples/` and `plots/` are
written during training, `tensorboard/` or `wandb/` by `tlite follow`, `profile/` by `--profile`,
`inspection/` by `tlite inspect`.

Runs are listed from their small JSON files alone, without JAX; a damaged run is listed as damaged.
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
from tlite.user_code import allow_code, write_code

LATEST, ROOT = "latest", Path("runs")
RUN, STUDY, TUNING, CODE = "config.json", "study.json", "tuning.json", "code"
LEDGER = "trials.jsonl"
RUN_FILES = {RUN, STUDY, TUNING, "metrics.jsonl", "checkpoints"}  # each folder has at least one
METRICS = "metrics/metrics"
"""JSON file of a checkpoint with its score, where Orbax's manager writes it."""
NO_SCORE = 1e30
"""Score of a checkpoint that was not validated, or was not finite: JSON has no NaN."""
UNLABELLED = "SHA-256 of the unlabelled texts"
"""Entry of a fingerprint. `tlite compare` ignores it: models are not validated on these texts."""
UNREADABLE = (
    OSError, ArithmeticError, LookupError, ValueError, TypeError, AttributeError, RecursionError
)  # fmt: skip
"""Exceptions that reading a damaged JSON file, or one of another format, raises."""

PACKAGE = Path(__file__).parents[1]
SOURCE_PACKAGES = (
    "functional", "models", "baselines", "text", "data", "pretrained", "decoding", "training",
    "runs",
)  # fmt: skip
"""Packages of tlite whose source decides the results of a run."""
LIBRARIES = "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"


@dataclass(frozen=True)
class RunDir:
    """Paths and config of a run."""

    path: Path
    experiment: Any
    fingerprint: dict
    """Sizes and SHA-256 of the data."""

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


class RunListing(NamedTuple):
    """A run, a study or a tuning in a list."""

    folder: Path
    created: datetime.datetime
    """Local time; of a study or a tuning that of its first run."""
    experiment: str = ""
    kind: str = "damaged"
    """generator, classifier, translator, study, tuning, pretrained or damaged; or the name of a
    user's experiment class in lower case, without "experiment"."""
    progress: int = 0
    """Step of the last checkpoint; number of a study's variants that have reached their last, or of
    the rungs that a tuning has decided."""
    total: int = 0
    """Number of steps, of variants, or of rungs."""
    best: str = ""
    """Best validation: "loss 1.0802"."""


# Find


def find_runs(root: Path) -> list[RunListing]:
    """Return runs, studies and tunings below a folder, newest first.

    Runs inside a study or a tuning are not listed.
    """
    runs = []
    for path, folders, files in os.walk(root):
        names = {*folders, *files}
        if "checkpoints" in names and not numbered_folders(Path(path, "checkpoints")):
            names.remove("checkpoints")  # a folder of runs may have this name
        if not RUN_FILES.isdisjoint(names):
            runs.append(summarize_run(Path(path)))
            folders.clear()
        folders[:] = [name for name in folders if not name.startswith(".")]
    runs = [run for run in runs if run.kind != "pretrained"]
    return sorted(runs, key=lambda run: (run.created, run.folder), reverse=True)


def find_run(folder: str | Path, kind: str = "", *, studies: bool = False) -> Path:
    """Return the run in a folder, or the newest one that is not damaged in a folder of runs.

    `latest` is the newest in ./runs, whatever ./latest is.

    Args:
        kind: generator, classifier, translator or tuning; "": any run.
        studies: a study counts as a run.

    Raises:
        UserError: there is no latest run, or `folder` is a URL or empty, like an unset variable.
    """
    if folder == "":
        raise UserError("the run's folder has an empty name: name one, or latest")
    is_latest = str(folder) == LATEST
    check_local(folder)
    if not is_latest and not os.path.isdir(folder):
        return Path(folder)
    excluded = {"damaged", "tuning"} if studies else {"damaged", "tuning", "study"}
    for run in find_runs(ROOT if is_latest else Path(folder)):
        if run.kind == kind or not (kind or run.kind in excluded):
            return run.folder
    if is_latest:
        name = {"": "run", "tuning": "tuning"}.get(kind, f"{kind}'s run")
        raise UserError(f"there is no latest {name}: {Path.cwd() / ROOT} has none")
    return Path(folder)


def newest_or_path(folder: str | Path, **settings: Any) -> Path:
    """Return the path, or for `latest` the newest run by `find_run` with `settings`."""
    check_local(folder)
    return find_run(folder, **settings) if str(folder) == LATEST else Path(folder)


def check_local(folder: str | Path) -> None:
    """Raise a `UserError` for a URL: runs are written to local or mounted file systems only."""
    if re.match(r"[a-z][a-z0-9+.-]*:/", str(folder), re.IGNORECASE):  # a Path has one slash only
        raise UserError(f"the run folder {folder} is a URL: only folders are supported")


def summarize_run(folder: Path) -> RunListing:
    """Return the summary of a run, a study or a tuning."""
    config = next((name for name in (STUDY, TUNING) if (folder / name).is_file()), RUN)
    configs = folder.glob(RUN if config == RUN else f"[!.]*/{RUN}")
    created = datetime.datetime.fromtimestamp(min(map(_creation_time, [*configs] or [folder])))
    try:
        content = _read_json(folder / config)
        if "model_type" in content:
            return RunListing(folder, created, kind="pretrained")
        if config == RUN:
            return _summarize_run(folder, created, experiment_fields(content["experiment"]))
        kind, name = config.removesuffix(".json"), str(content["name"])
        if config == STUDY:
            runs = [summarize_run(folder / variant["run"]) for variant in content["variants"]]
            ended, total = sum(0 < run.total <= run.progress for run in runs), len(runs)
        else:
            path, total = folder / LEDGER, len(content["rungs"])
            lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
            ended = max((json.loads(line)["rung"] for line in lines), default=0)
        return RunListing(folder, created, name, kind, ended, total)
    except UNREADABLE:
        return RunListing(folder, created)


def _summarize_run(folder: Path, created: datetime.datetime, experiment: dict) -> RunListing:
    training = experiment["training"]  # not a `TrainingConfig`: that imports JAX
    total, every, metric = (training[n] for n in ("steps", "evaluate_every", "best_metric"))
    checkpoints, scores = folder / "checkpoints", []
    steps = numbered_folders(checkpoints)
    for step in [step for step in steps if step % every == 0 or step == total] or steps:
        with contextlib.suppress(*UNREADABLE):  # it is damaged
            scores.append(float(_read_json(checkpoints / f"{step}" / METRICS)["score"]))
    score = min((score for score in scores if score < NO_SCORE), default=None)
    best = "" if score is None else f"{metric} {score if metric.endswith('loss') else -score:.4f}"
    kind = str(experiment["kind"]).removesuffix("Experiment").lower()
    last = steps[-1] if steps else 0
    return RunListing(folder, created, str(experiment["name"]), kind, last, int(total), best)


def _creation_time(path: Path) -> float:
    """Return when a run was created, in seconds, by its config or else by the file's time."""
    try:
        return datetime.datetime.fromisoformat(_read_json(path)["created"]).timestamp()
    except UNREADABLE:
        with contextlib.suppress(OSError):
            return path.stat().st_mtime
        return 0.0


def experiment_fields(saved: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an experiment in config.json, also of a user's class, and its "kind"."""
    if saved.get("kind") != "class":
        return saved
    return saved["fields"] | {"kind": saved["name"].rpartition(".")[2]}


def component_fields(saved: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a component in config.json, also of one of a user's class."""
    return saved["fields"] if saved.get("kind") == "class" else saved


def numbered_folders(folder: Path) -> list[int]:
    """Return the names in a folder that are numbers, such as the steps of checkpoints, sorted."""
    names = os.listdir(folder) if folder.is_dir() else []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


# Create


def new_folder(name: str, folder: Path | None = None, root: Path = ROOT) -> Path:
    """Return a path for a run where nothing exists: `folder`, or runs/NAME/YYYYMMDD-HHMMSS.

    Raises:
        UserError: it exists already, or can't be created.
    """
    check_local(folder or "")
    path = folder or root / name / datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent):
            pass  # raises before anything is computed
    except OSError as error:
        raise UserError(f"can't create the run folder {path}: {system_reason(error)}") from error
    if folder is None:
        return next_free(path)
    if os.path.lexists(folder):
        resume = command("train", "--resume", folder)
        raise UserError(
            f"the run folder {folder} exists already: name another, or resume it with {resume}"
        )
    return folder


def check_shared(folder: Path) -> None:
    """Raise a `CollectiveError` in all processes if one does not see process 0's run folder."""
    if distributed.process_count() == 1:
        return
    path, token = folder / ".shared", secrets.token_hex()
    if distributed.is_process0():
        replace_file(path, token)
    token = distributed.all_gather("token", token)[0]

    def is_visible(seconds: int) -> bool:
        time.sleep(seconds)
        with contextlib.suppress(OSError):
            return path.read_text() == token
        return False

    # NFS may cache a directory for some seconds.
    visible = distributed.all_gather("run folder", is_visible(0) or is_visible(5))
    distributed.broadcast_from_process0(lambda: path.unlink(missing_ok=True))
    if not all(visible):
        raise CollectiveError(
            f"process {visible.index(False)} does not see the run folder {folder} of process 0: "
            "all processes need the same working directory on a file system that they share"
        )


def next_free(path: Path, is_used: Callable[[Path], bool] = os.path.lexists) -> Path:
    """Return the first of path, path-2, path-3, ... that is not used."""
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(free for free in itertools.chain([path], others) if not is_used(free))


def create_run(
    folder: Path,
    experiment: Any,
    fingerprint: dict,
    tokenizer: Any,
    *,
    exist_ok: bool = False,
    origin: dict[str, Any] | None = None,
    fill: Callable[[Path], None] | None = None,
) -> RunDir:
    """Write a run into a hidden folder, and rename it to `folder`.

    Args:
        exist_ok: if `folder` exists, use the next free number.
        origin: run and step that this run continues, recorded in config.json.
        fill: writes further files into the hidden folder.

    Raises:
        UserError: the config could not be read back, the disk is full, or the folder exists.
    """
    content = {"experiment": to_checked_json(experiment), "data": fingerprint}

    def write(temporary: Path) -> None:
        (temporary / "checkpoints").mkdir()
        write_code(temporary / CODE, content["experiment"])
        path = temporary / tokenizer.file_name
        tokenizer.save(path)
        created = datetime.datetime.now().astimezone().isoformat(timespec="milliseconds")
        more = {
            "tokenizer": {"file": path.name, "sha256": sha256(path)},
            "made_with": {"tlite": tlite.__version__, "commit": _commit()} | _versions(),
            "created": created,
        } | ({"origin": origin} if origin else {})
        if fill is not None:
            fill(temporary)
        (temporary / RUN).write_text(json.dumps(content | more, indent=2), encoding="utf-8")

    return RunDir(create_folder(folder, write, exist_ok=exist_ok), experiment, fingerprint)


def to_checked_json(experiment: Any) -> dict[str, Any]:
    """Return an experiment as JSON, from which it can be restored."""
    try:
        content = json.loads(json.dumps(to_dict(experiment)))
        restored = json.loads(json.dumps(to_dict(from_dict(type(experiment), content))))
    except (TypeError, ValueError) as error:
        raise UserError(f"the run could never be opened again: {error}") from error
    if restored != content:
        difference = distributed.first_difference(content, restored)
        raise UserError(f"the run could never be opened again: {difference}")
    return content


def replace_file(path: Path, content: bytes | str | dict) -> None:
    """Write a file, a dict as JSON, so that a kill leaves either the old or the new content."""
    temporary = path.with_name(f".{path.name}.new")
    if isinstance(content, dict):
        content = json.dumps(content, indent=2)
    content = content.encode() if isinstance(content, str) else content
    with disk_errors(path), temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
        temporary.replace(path)


def create_folder(folder: Path, write: Callable[[Path], None], *, exist_ok: bool) -> Path:
    """Let `write` fill a hidden folder, then rename it to `folder` or the next free number."""
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        with disk_errors(folder):
            temporary.mkdir()
            write(temporary)
            return temporary.rename(next_free(folder) if exist_ok else folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


# Open


def open_run(folder: Path, kind: Any, *, trust: bool = False) -> RunDir:
    """Open a run that `create_run` wrote; warn if source or libraries have changed since.

    Args:
        kind: type of its experiment, or a union of types.
        trust: execute the run's copy of user code, even if this user has not trained with it.

    Raises:
        UserError: there is no such folder, it isn't a run's, or it can't be read.
    """
    path = folder / RUN
    try:
        if not path.is_file():
            raise UserError(_describe_missing_run(folder))
        content = read_config(path)
        tokenizer = folder / Path(content["tokenizer"]["file"]).name
        # is_file: opening a pipe would wait
        if not tokenizer.is_file() or sha256(tokenizer) != content["tokenizer"]["sha256"]:
            raise UserError(f"{tokenizer} is missing, or has changed since the run was created")
        with allow_code(folder / CODE, trust=trust):
            experiment = from_dict(kind, content["experiment"])
        if isinstance(kind, type) and not isinstance(experiment, kind):
            raise ValueError(f"expected {kind.__name__}, not {type(experiment).__name__}")
    except OSError as error:
        raise UserError(f"can't read {error.filename or path}: {system_reason(error)}") from error
    except ValueError as error:
        raise UserError(f"{path} is not a config that this tlite can read: {error}") from error
    versions, before = _versions(), content["made_with"]
    changed = [
        name if name.startswith("tlite/") else f"{name} (was {before.get(name)})"
        for name in versions
        if before.get(name) != versions[name]
    ]
    if changed:
        changes = f"{', '.join(changed)} changed since {folder} was created"
        print(printable(f"warning: {changes}: results may differ"), file=sys.stderr)
    return RunDir(folder, experiment, content["data"])


def _describe_missing_run(folder: Path) -> str:
    """Return why a folder is no run, and which run may be meant."""
    if (folder / STUDY).is_file():
        runs = ", ".join(sorted(path.parent.name for path in folder.glob(f"[!.]*/{RUN}")))
        return f"{folder} is a study: name one of its runs ({runs})"
    reason = "has no config.json: it is not a run folder" if folder.exists() else "does not exist"
    newest = find_run(ROOT)
    return f"{folder} {reason}" + ("" if newest == ROOT else f"; the newest run is {newest}")


def read_config(path: Path) -> dict:
    """Return the content of config.json."""
    try:
        content = _read_json(path)
        texts = [content["experiment"]["kind"], *map(content["tokenizer"].get, ("file", "sha256"))]
        texts += content["made_with"].values()
        is_valid = isinstance(content["data"], dict) and all(isinstance(t, str) for t in texts)
    except json.JSONDecodeError as error:
        raise ValueError(f"line {error.lineno} is not JSON") from error
    except (LookupError, TypeError, AttributeError, RecursionError):
        is_valid = False
    if not is_valid:
        raise ValueError("a field is missing or invalid")
    return content


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _versions() -> dict[str, str]:
    """Return the versions of Python and libraries, and a hash of each of `SOURCE_PACKAGES`."""
    versions = {"python": platform.python_version()}
    versions |= {name: version(name) for name in LIBRARIES}
    for name in SOURCE_PACKAGES:
        digest = hashlib.sha256()
        for path in sorted((PACKAGE / name).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(PACKAGE / name)} {len(content)}\n".encode() + content)
        versions[f"tlite/{name}"] = digest.hexdigest()[:16]
    return versions


def _commit() -> str:
    """Return the commit of a checkout, with "+" if files have changed; "" elsewhere."""
    if not (PACKAGE.parent / ".git").exists():
        return ""
    options = "describe", "--always", "--exclude=*", "--abbrev=40", "--dirty=+"
    git = ["git", "-C", str(PACKAGE.parent), *options]
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # no git, or not allowed
        result = subprocess.run(git, capture_output=True, text=True, timeout=10, check=True)
        return result.stdout.strip()
    return ""
