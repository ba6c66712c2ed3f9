"""What a run was made with: versions, commit and source, so that a changed equation is noticed."""

import hashlib
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import tlite

PACKAGE = Path(__file__).parents[1]
ROOMS = ("functional", "models", "text", "data", "pretrained", "decoding", "training", "recipes")
"""Whose source decides a run's numbers."""
LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")


def made_with() -> dict[str, str]:
    """Versions of Python and the libraries, the commit, and a hash of each room's source."""
    versions = {"python": platform.python_version(), "tlite": tlite.__version__}
    versions |= {name: _version(name) for name in LIBRARIES}
    sources = {f"tlite/{room}": _source_hash(PACKAGE / room) for room in ROOMS}
    return versions | {"commit": _commit()} | sources


def changed_since(then: dict) -> str:
    """What is otherwise now, as a phrase; "" where nothing is that decides numbers.

    Of a room that a run does not tell of, as it was made before there was such, nothing is said.
    """
    now = made_with()
    told = [name for name in now if name.startswith("tlite/") and name in then]
    rooms = [name for name in told if then[name] != now[name]]
    phrases = [f"the source in {', '.join(rooms)} has changed"] if rooms else []
    if rooms and then.get("commit") and now["commit"]:
        phrases[0] += f" ({then['commit'][:12]} then, {now['commit'][:12]} now)"
    return "; ".join(
        phrases
        + [
            f"{name} was {then[name]} and is {now[name]}"
            for name in ("jax", "jaxlib", "flax", "optax")
            if name in then and then[name] != now[name]
        ]
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _source_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:16]


def _commit() -> str:
    """The commit of a checkout, with "+" where files of the package differ; "" elsewhere."""
    if not (PACKAGE.parent / ".git").exists():
        return ""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(PACKAGE.parent), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        ).stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(PACKAGE))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):  # no git, or not allowed
        return ""
