"""User code: the Python files with the user's functions that experiments use and runs record.

A file and the modules that it imports from its folder are one program. Its files are read and
hashed once, by the import statements in their source, and executed from what was read, in a
namespace that no other program shares. A config names a function by the program's file, the
function's name and the SHA-256 of each file. A run's folder has a copy of these files by their
SHA-256. The copy is executed only with consent: `--trust`, `trust=True`, or a program that this
user has trained with; consent is remembered by the SHA-256 of the program's files.
"""

import ast
import builtins
import contextlib
import dataclasses
import hashlib
import importlib
import itertools
import json
import os
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any, NamedTuple

from tlite.errors import UserError, printable, system_reason

PACKAGE = Path(__file__).resolve().parent
PREFIX = "__code_"  # of the names of modules that are executed here
PATHS = "paths.json"  # in a run's code folder: the path of each file when the run was created

_programs: dict[str, "Program"] = {}  # by the first name of their modules
_numbers = itertools.count()  # for these names
_allowed: ContextVar[tuple[Path | None, bool]] = ContextVar("allowed", default=(None, False))


class Source(NamedTuple):
    """A file of a program."""

    content: bytes
    path: Path
    """Path that it was read from: the user's file, or the copy of a run."""
    original: Path
    """Path of the user's file, for `__file__`."""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()


class Program(Loader):
    """A Python file with the modules that it imports from its folder or its package.

    Its modules are submodules of a package that is made for it: a second program in the process has
    another `helper`, and an edited one is read again.

    Args:
        file: name of the main file, a key of `sources`.
        sources: files by name: `helper.py`, `package/helper.py`.
        module: the main file's module if Python has imported it.
    """

    def __init__(self, file: str, sources: dict[str, Source], module: ModuleType | None = None):
        self.file, self.sources, self.module = file, sources, module
        self.digests = {name: source.sha256 for name, source in sources.items()}
        self.name = module.__name__ if module else f"{PREFIX}{next(_numbers)}__"
        self.spec = getattr(module, "__spec__", None)  # another one after a reload
        others = (name for name in sources if name != file)
        self._modules = {"experiments", *(n.partition("/")[0].removesuffix(".py") for n in others)}
        if module:
            _programs[self.name] = self

    @property
    def is_copy(self) -> bool:
        """True if the files are copies in the folder of a run."""
        main = self.sources[self.file]
        return main.path != main.original

    def execute(self) -> ModuleType:
        """Execute the main file in a new module, and return it.

        Raises:
            UserError: it raises an error; the message has the line.
        """
        *package, name = self.file.removesuffix(".py").split("/")
        parent = ".".join([self.name, *package])
        self.module = ModuleType(f"{parent}.{name.replace('.', '_')}")
        self.module.__package__ = parent
        root = sys.modules[self.name] = ModuleType(self.name)
        root.__path__ = []
        sys.modules[self.module.__name__] = self.module
        _programs[self.name] = self
        try:
            self._execute(self.module, self.file)
        except Exception as error:
            del _programs[self.name]
            message = _describe_error(error, self.file, self.sources)
            raise UserError(message.replace(f"{self.name}.", "")) from error
        return self.module

    def find(self, name: str) -> Any:
        """Return the value of a top-level name of the file, or of a module as `helper.name`."""
        parent, _, last = name.rpartition(".")
        module = sys.modules.get(f"{self.name}.{parent}") if parent else self.module
        return vars(module).get(last) if module else None

    # Imports

    def _import(self, name: str, globals=None, locals=None, fromlist=(), level: int = 0) -> Any:
        """Python's `__import__`, with the program's modules before those of others."""
        top = name.partition(".")[0]
        is_main = f"{top}.py" == self.file and not _is_library(top)
        if level or not (is_main or top in self._modules):
            return builtins.__import__(name, globals, locals, fromlist, level)
        module = builtins.__import__(f"{self.name}.{name}", globals, locals, fromlist, 0)
        return module if fromlist else sys.modules[f"{self.name}.{top}"]

    def _file_of(self, module: str) -> str | None:
        """Return the name of a module's file; "" for a folder without `__init__.py`."""
        path = module.partition(".")[2].replace(".", "/")
        names = [name for name in (f"{path}/__init__.py", f"{path}.py") if name in self.sources]
        folders = ["experiments/", *self.sources]  # the first also if nothing is imported from it
        is_folder = any(name.startswith(f"{path}/") for name in folders)
        return names[0] if names else "" if is_folder else None

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a program's module, for Python's import system."""
        if not name.startswith(PREFIX) or not (program := _programs.get(name.partition(".")[0])):
            return None
        if (file := program._file_of(name)) is None:
            return None
        is_package = not file or file.endswith("/__init__.py")
        return ModuleSpec(name, program, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        """Execute an imported module (a method of every loader)."""
        if file := self._file_of(module.__name__):
            self._execute(module, file)

    def _execute(self, module: ModuleType, file: str) -> None:
        content, path, original = self.sources[file]
        module.__file__ = str(original.resolve())
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": self._import}
        exec(compile(content, path.resolve(), "exec", dont_inherit=True), vars(module))


sys.meta_path.insert(0, Program)


class SourceReader:
    """Reads a file, and the modules of its folder or package that its import statements name.

    Raises:
        UserError: a file can't be read, or is not Python.
    """

    def __init__(self, path: Path):
        importlib.invalidate_caches()  # a file beside it may be a moment old
        folder = root = path.resolve().parent
        while (root / "__init__.py").is_file():
            root = root.parent
        package = list(folder.relative_to(root).parts)
        self.file = "/".join([*package, path.name])
        self.sources: dict[str, Source] = {}
        self._folders = list(map(str, dict.fromkeys([folder, root])))
        self._experiments = [str(folder)] if folder.name == "experiments" else []
        self._experiments.append(str(shipped_experiments()))
        try:
            self._read(path, self.file, package)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise UserError(_describe_error(error, self.file, self.sources)) from error

    def _read(self, path: Path, file: str, package: list[str]) -> None:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UserError(f"can't read {path}: {system_reason(error)}") from error
        self.sources[file] = Source(content, path, path)
        for node in ast.walk(ast.parse(content, str(path.resolve()))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                level, module = getattr(node, "level", 0), getattr(node, "module", None)
                start = package[: len(package) + 1 - level] if level else []
                start += module.split(".") if module else []
                for alias in node.names:
                    names = [*start, *alias.name.split(".")]
                    if level or names[0] == "experiments" or not _is_library(names[0]):
                        self._read_module(names)

    def _read_module(self, names: list[str]) -> None:
        """Read a module of the program and the packages that it is in."""
        folders = self._folders
        for at, name in enumerate(names, 1):
            if names[:at] == ["experiments"]:
                folders = self._experiments
                continue
            spec = PathFinder.find_spec(name, folders) if folders else None
            if spec is None:
                return
            folders, inner = list(spec.submodule_search_locations or []), names[:at]
            file = "/".join(inner) + ("/__init__.py" if folders else ".py")
            if isinstance(spec.loader, SourceFileLoader) and file not in self.sources:
                self._read(Path(spec.origin), file, inner if folders else inner[:-1])


def read_program(path: Path, module: ModuleType | None = None) -> Program:
    """Read a Python file and the modules of the user's that it imports."""
    reader = SourceReader(path)
    return Program(reader.file, reader.sources, module)


def exec_file(path: Path) -> ModuleType:
    """Execute a Python file that the user has named.

    Raises:
        UserError: it can't be read, or raises an error; the message has the line.
    """
    return read_program(path).execute()


def is_user_code(value) -> bool:
    """True if a component of a model, its class or a function is the user's, and not tlite's."""
    if not (callable(value) or dataclasses.is_dataclass(value)):
        return False
    module = getattr(value, "__module__", None) or type(value).__module__
    return module.partition(".")[0] != PACKAGE.name


def describe_code(function: Callable) -> dict[str, Any]:
    """Return the reference to a function, or to a component's class, for config.json.

    Returns:
        "kind", the "file" of its program, its "name", after that of its module if that is another
        file, and "sha256": the digest of each file of the program, by file name.

    Raises:
        UserError: it is not on the top level of a file of the user's.
    """
    name = getattr(function, "__qualname__", repr(function))
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = Path(getattr(module, "__file__", None) or "")
    first = getattr(module, "__name__", "").partition(".")[0]
    program = _programs.get(first if first.startswith(PREFIX) else getattr(module, "__name__", ""))
    library = PACKAGE in file.resolve().parents or _is_installed(str(file))
    library |= first in sys.stdlib_module_names
    is_program = first.startswith(PREFIX) or file.resolve().parent == shipped_experiments()
    if library and not is_program:
        raise UserError(
            f"{name} is a library's function (of {first}), which a run can't record: define a "
            "function in your file that calls it"
        )
    if file.suffix != ".py" or vars(module).get(name) is not function:
        where = f"{file.name or 'a Python file'} under that name"
        raise UserError(f"{name} is not on the top level of {where}: a run can't record it")
    if program is None or (module is program.module and module.__spec__ is not program.spec):
        program = read_program(file, module)  # Python has imported it, or has reloaded it
    kind = "class" if isinstance(function, type) else "function"
    if module is not program.module:
        name = f"{module.__name__.partition('.')[2]}.{name}"
    return {"kind": kind, "file": program.file, "name": name, "sha256": program.digests}


# Copies in the folder of a run


@contextlib.contextmanager
def allow_code(folder: Path | None = None, *, trust: bool = False) -> Iterator[None]:
    """Let `find_code` execute copies of user code within the context.

    Args:
        folder: code folder of a run or study, for programs that are not loaded.
        trust: execute the copies, whoever wrote them.
    """
    outer_folder, outer_trust = _allowed.get()
    token = _allowed.set((folder or outer_folder, trust or outer_trust))
    try:
        yield
    finally:
        _allowed.reset(token)


def find_code(reference: Any) -> Callable:
    """Return the function or the class that `describe_code` has described.

    A program that this process has loaded, or that came with tlite, is preferred to the copy in the
    folder of `allow_code`.

    Raises:
        ValueError: `reference` is not a description of a function.
        UserError: there is no copy, it was changed, the user has not consented to execute it, or it
            has no such function.
    """
    try:
        kind, file, name, digests = (reference[key] for key in ("kind", "file", "name", "sha256"))
        if {type(text) for text in (kind, file, name, digests[file], *digests.values())} != {str}:
            raise TypeError
        if not all(map(_is_file_name, digests)) or not all(map(_is_sha256, digests.values())):
            raise TypeError
    except (TypeError, KeyError, AttributeError) as error:
        text = f"expected a function's file, name and SHA-256, not {reference!r:.80}"
        raise ValueError(text) from error
    program = _find_loaded(file, digests, name) or _find_shipped(file, digests)
    if program is None:
        program = _read_copy(file, digests, name)
    if program.module is None:
        program.execute()
    function = program.find(name)
    expected = {"kind": kind, "file": file, "name": name, "sha256": digests}
    if not callable(function) or describe_code(function) != expected:
        raise UserError(f"there is no {kind} {name} in {file}")
    return function


def write_code(folder: Path, config: Any) -> None:
    """Write copies of the files that a config as JSON refers to, if any, into a new folder."""
    sources = [s for program in _programs_of(config) for s in program.sources.values()]
    if sources:
        folder.mkdir()
        for source in sources:
            (folder / f"{source.sha256}.py").write_bytes(source.content)
        paths = {source.sha256: str(source.original.resolve()) for source in sources}
        (folder / PATHS).write_text(json.dumps(paths, indent=2), encoding="utf-8")


def remember_code(config: Any) -> None:
    """Remember this user's consent to the programs that a config as JSON refers to.

    Programs that were executed from the copy of a run are not remembered.
    """
    for program in _programs_of(config):
        with contextlib.suppress(OSError, RuntimeError):  # no home folder, or a full disk
            if not program.is_copy:
                path = _consent_path(program.file, program.digests)
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                path.touch(mode=0o600)


def _programs_of(config: Any) -> list[Program]:
    """Return the loaded programs that a config refers to."""
    if isinstance(config, list | tuple):
        return [program for value in config for program in _programs_of(value)]
    if not isinstance(config, dict):
        return []
    programs = _programs_of([*config.values()])
    if isinstance(digests := config.get("sha256"), dict) and "name" in config:
        program = _find_loaded(config["file"], digests, config["name"])
        programs += [program] if program else []
    return programs


def _consent_path(file: str, digests: dict[str, str]) -> Path:
    """Return the path of an empty file that exists if this user has trained with a program."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    program = json.dumps([file, digests], sort_keys=True).encode()
    return Path(state, "tlite", "trusted", hashlib.sha256(program).hexdigest())


def _is_remembered(file: str, digests: dict[str, str]) -> bool:
    with contextlib.suppress(OSError, RuntimeError):
        return _consent_path(file, digests).is_file()
    return False


def _find_loaded(file: str, digests: dict[str, str], name: str) -> Program | None:
    """Return the program with these files that this process has loaded last."""
    same = (p for p in reversed(_programs.values()) if (p.file, p.digests) == (file, digests))
    return next((program for program in same if callable(program.find(name))), None)


def _find_shipped(file: str, digests: dict[str, str]) -> Program | None:
    """Return the program of an experiment of tlite if its files are those of the digests."""
    path = shipped_experiments() / os.path.basename(file)
    program = read_program(path) if path.is_file() else None
    return program if program and (program.file, program.digests) == (file, digests) else None


def _read_copy(file: str, digests: dict[str, str], name: str) -> Program:
    """Return the program in the folder of `allow_code` if its files are those of the digests.

    Raises:
        UserError: a file is missing or differs, or the user has not consented to execute it.
    """
    folder, trust = _allowed.get()
    if folder is None:
        raise UserError(f"{name} of {file} is not loaded, and there is no copy of it here")
    paths, sources = _read_paths(folder), {}
    for each, digest in digests.items():
        copy = folder / f"{digest}.py"
        try:
            content = copy.read_bytes() if copy.is_file() else None
        except OSError as error:
            raise UserError(f"can't read {copy}: {system_reason(error)}") from error
        if content is None:
            raise UserError(f"{copy} is missing, the run's copy of {each}")
        sources[each] = source = Source(
            content, copy, Path(paths.get(digest) or folder / os.path.basename(each))
        )
        if source.sha256 != digest:
            raise UserError(f"{copy} has changed: it is not the {each} that the run was made with")
    if not (trust or _is_remembered(file, digests)):
        raise UserError(
            f"the run uses {name} of {file}, which you have not trained with: read "
            f"{sources[file].path} and, to execute it, add --trust (in Python trust=True)"
        )
    for source in sources.values():
        _warn_if_changed(source)
    return Program(file, sources)


def _read_paths(folder: Path) -> dict[str, str]:
    """Return the path of each file by its SHA-256 when the run was created, {} if unknown."""
    path = folder / PATHS
    with contextlib.suppress(OSError, ValueError, RecursionError, AttributeError):
        content = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        return {n: p for n, p in content.items() if isinstance(p, str) and "\0" not in p}
    return {}


def _warn_if_changed(source: Source) -> None:
    """Warn if the user's file of today is not the copy that the run uses."""
    try:
        today = source.original.read_bytes() if source.original.is_file() else source.content
    except OSError:
        return
    if today != source.content:
        before, after = Counter(source.content.splitlines()), Counter(today.splitlines())
        number = max((before - after).total(), (after - before).total(), 1)
        warning = (
            f"warning: {source.original} has changed since the run was created ({number} lines "
            f"differ): the run uses its copy {source.path}"
        )
        print(printable(warning), file=sys.stderr)


def _is_file_name(name: str) -> bool:
    path = PurePosixPath(name)
    return path.suffix == ".py" and ".." not in path.parts and name == str(path) and name[0] != "/"


def _is_sha256(text: str) -> bool:
    return len(text) == 64 and set(text) <= set("0123456789abcdef")


# Names and messages


def name_of(function: Callable | str) -> str:
    """Return a function's name for messages: "exact", or "my_attention of my_file.py"."""
    if isinstance(function, str):
        return function
    module = sys.modules.get(function.__module__)
    file = os.path.basename(getattr(module, "__file__", None) or function.__module__)
    return f"{function.__qualname__} of {file}"


def shipped_experiments() -> Path:
    """Return the folder of tlite's experiments: in a wheel, or beside the package."""
    inside = PACKAGE / "_shipped" / "experiments"
    return inside if inside.is_dir() else PACKAGE.parent / "experiments"


def _is_library(name: str) -> bool:
    """True if `import name` means a module of Python, of tlite or of an installed package."""
    installed = [path for path in sys.path if _is_installed(path)]
    known = {*sys.stdlib_module_names, PACKAGE.name}
    return name in known or PathFinder.find_spec(name, installed) is not None


def _is_installed(path: str | None) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(path or "").parts)


def _describe_error(error: Exception, file: str, sources: dict[str, Source]) -> str:
    """Return an error of a program as one line, with the line of the file that raised it."""
    frames = traceback.walk_tb(error.__traceback__)
    positions = [(frame.f_code.co_filename, line) for frame, line in frames]
    if isinstance(error, SyntaxError):
        positions.append((error.filename or "", error.lineno))
    paths = {str(source.path.resolve()): source.path for source in sources.values()}
    lines = [f"{paths[path]}, line {line}" for path, line in positions if line and path in paths]
    kind = "" if isinstance(error, UserError) else type(error).__name__
    message = (getattr(error, "msg", None) or str(error)).strip().partition("\n")[0]
    where = lines[-1] if lines else str(sources[file].path)
    return ": ".join(text for text in (where, kind, message) if text)
