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
import functools
import hashlib
import importlib
import itertools
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from tlite.errors import UserError, printable, system_reason
from tlite.user_code.imported import RecordedSource, find_change
from tlite.user_code.library import (
    describe_arguments,
    describe_library_code,
    find_arguments,
    find_library_code,
    is_library_code,
)
from tlite.user_code.notebook import (
    FILE,
    find_changed_value,
    is_notebook_code,
    named_values,
    read_notebook_source,
)

PACKAGE = Path(__file__).resolve().parents[1]
SHIPPED = PACKAGE / "_shipped" / "experiments"
EXPERIMENTS = SHIPPED if SHIPPED.is_dir() else PACKAGE.parent / "experiments"
"""Folder of tlite's experiments: in a wheel, or beside the package."""
INSTALLED = re.compile(r"[/\\](site|dist)-packages\b")
PREFIX = "__code_"  # of the names of modules that are executed here
PATHS = "paths.json"  # in a run's code folder: the path of each file when the run was created

_programs: dict[str, "Program"] = {}  # by the first name of their modules
_numbers = itertools.count()  # for these names
_allowed: ContextVar[tuple[Path | None, bool]] = ContextVar("allowed", default=(None, False))


# Read and execute a file


class Source(NamedTuple):
    """A file of a program."""

    content: bytes
    path: Path
    """Path that it was read from: the user's file, or the copy of a run."""
    original: Path
    """Path of the user's file, for `__file__`."""


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
        self.spec = getattr(module, "__spec__", None)  # another one after a reload
        self.name = module.__name__ if module else f"{PREFIX}{next(_numbers)}__"
        self.digests: dict[str, str] = {}  # SHA-256 by file
        self.files = {"": "", "experiments": ""}  # by module; "" for a folder without __init__.py
        for each, source in sources.items():
            self.digests[each] = hashlib.sha256(source.content).hexdigest()
            name = each.removesuffix(".py").removesuffix("/__init__")
            names = name.replace(".", "_").split("/")
            for end in range(1, len(names)):
                self.files.setdefault(".".join(names[:end]), "")
            name = ".".join(names)
            self.files[name] = self.files.get(name) or each
            if each == file:
                self.main = name
        if module:
            _programs[self.name] = self

    @functools.cached_property
    def recorded_sources(self) -> dict[str, RecordedSource]:
        """Definitions in the files, to compare with modules that Python has imported."""
        return {file: RecordedSource(source.content) for file, source in self.sources.items()}

    def execute(self) -> ModuleType:
        """Execute the main file in a new module, and return it."""
        _programs[self.name] = self
        try:
            return importlib.import_module(f"{self.name}.{self.main}")
        except (Exception, SystemExit) as error:
            del _programs[self.name]
            message = _describe_error(error, self.file, self.sources)
            raise UserError(message.replace(f"{self.name}.", "")) from error

    def find(self, name: str) -> Any:
        """Return the value of a top-level name of the file, or of a module as `helper.name`."""
        parent, _, last = name.rpartition(".")
        module = sys.modules.get(f"{self.name}.{parent}") if parent else self.module
        return vars(module).get(last) if module else None

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return the spec of a program's module, for Python's import system."""
        top, _, module = name.partition(".")
        program = _programs.get(top) if top.startswith(PREFIX) else None
        if program is None or (file := program.files.get(module)) is None:
            return None
        is_package = not file or file.endswith("/__init__.py")
        return ModuleSpec(name, program, origin=file, is_package=is_package)

    def exec_module(self, module: ModuleType) -> None:
        """Execute a module of the program, for Python's import system."""
        if not (file := module.__spec__.origin):
            return
        if file == self.file:
            self.module, self.spec = module, module.__spec__
        content, path, original = self.sources[file]
        module.__file__ = str(original.resolve())
        vars(module)["__builtins__"] = vars(builtins) | {"__import__": self._import}
        exec(compile(content, path.resolve(), "exec", dont_inherit=True), vars(module))

    def _import(self, name: str, globals=None, locals=None, fromlist=(), level: int = 0) -> Any:
        """Python's `__import__`, with the program's modules before those of others."""
        top = name.partition(".")[0]
        is_main = top == self.file.partition("/")[0].removesuffix(".py")
        if level or top not in self.files or (is_main and _is_library(top)):
            return builtins.__import__(name, globals, locals, fromlist, level)
        module = builtins.__import__(f"{self.name}.{name}", globals, locals, fromlist, 0)
        return module if fromlist else sys.modules[f"{self.name}.{top}"]


sys.meta_path.insert(0, Program)


def exec_file(path: Path) -> ModuleType:
    """Execute a Python file that the user has named.

    Raises:
        UserError: it can't be read, or raises an error; the message has the line.
    """
    return read_program(path).execute()


def read_program(path: Path, module: ModuleType | None = None) -> Program:
    """Read a Python file, and the modules of its folder or package that its imports name."""
    importlib.invalidate_caches()  # a file beside it may be a moment old
    folder = root = path.resolve().parent
    while (root / "__init__.py").is_file():
        root = root.parent
    main = (path.resolve().parent / path.name).relative_to(root).as_posix()
    folders = [str(folder), str(root)]
    return Program(main, _read_sources(main, path, folders), module)


def _read_sources(
    main: str, path: Path, folders: list[str], content: bytes | None = None
) -> dict[str, Source]:
    """Return a program's files by name: `main`, and those of the folders that it imports.

    Args:
        content: that of `main` if it is not in a file.
    """
    unread, sources = {main: path}, {}
    try:
        while unread:
            file, path = unread.popitem()
            if file not in sources:
                in_memory = content is not None and file == main
                sources[file] = Source(content if in_memory else path.read_bytes(), path, path)
                tree = ast.parse(sources[file].content, str(path.resolve()))
                unread.update(_find_imports(tree, file.split("/")[:-1], folders))
    except OSError as error:
        raise UserError(f"can't read {path}: {system_reason(error)}") from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(_describe_error(error, main, sources)) from error
    return sources


def _find_imports(
    tree: ast.AST, package: list[str], folders: list[str]
) -> Iterator[tuple[str, Path]]:
    """Yield name and path of the files in these folders that import statements name.

    Args:
        package: names of the package that the statements are in.
    """
    beside = folders[:1] if Path(folders[0]).name == "experiments" else []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        level = getattr(node, "level", 0)
        start = package[: len(package) + 1 - level] if level else []
        start += (getattr(node, "module", None) or "").split(".")
        for alias in node.names:
            names = [*filter(None, (*start, *alias.name.split(".")))]
            is_experiment = names[0] == "experiments"
            if not (level or is_experiment) and _is_library(names[0]):
                continue
            search = [*beside, str(EXPERIMENTS)] if is_experiment else folders
            for end in range(2 if is_experiment else 1, len(names) + 1):
                spec = PathFinder.find_spec(names[end - 1], search) if search else None
                if spec is None:
                    break
                search = list(spec.submodule_search_locations or [])
                file = "/".join(names[:end]) + ("/__init__.py" if search else ".py")
                if isinstance(spec.loader, SourceFileLoader):
                    yield file, Path(spec.origin)


def _is_library(name: str) -> bool:
    """Return True if `import name` means a module of Python, tlite or an installed package."""
    installed = [*filter(INSTALLED.search, sys.path)]
    known = {*sys.stdlib_module_names, PACKAGE.name}
    return name in known or PathFinder.find_spec(name, installed) is not None


def _describe_error(error: BaseException, file: str, sources: dict[str, Source]) -> str:
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


# Describe a function in a config


def is_user_code(value: Any) -> bool:
    """Return True if a component of a model, its class or a function is the user's."""
    if not (callable(value) or dataclasses.is_dataclass(value)):
        return False
    module = getattr(value, "__module__", None) or type(value).__module__
    return module.partition(".")[0] != PACKAGE.name


def name_of(function: Callable | str) -> str:
    """Return a function's name for messages: "exact", or "my_attention of my_file.py"."""
    if isinstance(function, str):
        return function
    if isinstance(function, functools.partial):
        settings = [*map(str, function.args), *(f"{n}={v}" for n, v in function.keywords.items())]
        return f"{name_of(function.func)} ({', '.join(settings)})"
    if is_library_code(function):
        library = function.__module__.partition(".")[0]
        return f"{function.__qualname__.partition('.<locals>')[0]} of {library}"
    module = sys.modules.get(function.__module__)
    file = os.path.basename(getattr(module, "__file__", None) or function.__module__)
    file = FILE if is_notebook_code(function) else file
    return f"{function.__qualname__} of {file}"


def describe_code(function: Callable) -> dict[str, Any]:
    """Return the reference to a function, or to a component's class, for config.json.

    Returns:
        "kind", the "file" of its program, its "name", after that of its module if that is another
        file, and "sha256": the digest of each file of the program, by file name. A function of a
        notebook has a file that `read_notebook_source` makes from its cells. Functions of optax
        and JAX are described by `describe_library_code`.

    Raises:
        UserError: it is not on the top level of a file or a notebook of the user's.
    """
    if isinstance(function, functools.partial) or is_library_code(function):
        return _describe_partial_or_library(function)
    if is_notebook_code(function):
        return _describe_notebook_code(function)
    name = getattr(function, "__qualname__", repr(function))
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    file = Path(getattr(module, "__file__", None) or "")
    top, _, inner = getattr(module, "__name__", "").partition(".")
    is_library = PACKAGE in file.resolve().parents or INSTALLED.search(str(file))
    is_library = is_library or top in sys.stdlib_module_names
    if is_library and not top.startswith(PREFIX) and file.resolve().parent != EXPERIMENTS:
        raise UserError(
            f"{name} is a library's function (of {top}), which a run can't record: define a "
            "function in your file that calls it"
        )
    if file.suffix != ".py" or vars(module).get(name) is not function:
        where = f"{file.name or 'a Python file'} under that name"
        if name.endswith("<lambda>"):
            raise UserError(
                f"a lambda has no name that a run can record: write it as a def in {file.name}"
            )
        raise UserError(f"{name} is not on the top level of {where}: a run can't record it")
    program = _program_of(module, file, function)
    kind = "class" if isinstance(function, type) else "function"
    name = name if module is program.module else f"{inner}.{name}"
    return {"kind": kind, "file": program.file, "name": name, "sha256": program.digests}


def _program_of(module: ModuleType, file: Path, function: Callable) -> Program:
    """Return the program of a module; read it if Python has imported or reloaded the module.

    Raises:
        UserError: the imported code differs from the file.
    """
    top = module.__name__.partition(".")[0]
    program = _programs.get(top if top.startswith(PREFIX) else module.__name__)
    if program is not None:
        if top.startswith(PREFIX) and module is not program.module:  # that the main file imports
            return program
        is_same = module is program.module and module.__spec__ is program.spec
        if is_same and (top.startswith(PREFIX) or not _find_change(program, function)):
            return program
    program = read_program(file, module)
    if change := _find_change(program, function):
        del _programs[program.name]
        raise UserError(
            f"{name_of(function)} can't be recorded: {change}: reload the module if the file was "
            "edited, or make a value that varies an argument and bind it by functools.partial"
        )
    return program


def _find_change(program: Program, function: Callable) -> str:
    """Describe the first difference between an imported function's dependencies and the source."""
    modules = []
    for file, source in program.recorded_sources.items():
        name = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        module = program.module if file == program.file else sys.modules.get(name)
        # Another loader may change the code: that of pytest, jaxtyping or beartype.
        is_plain = type(getattr(module, "__loader__", None)) is SourceFileLoader
        if is_plain and Path(module.__file__).resolve() == program.sources[file].path.resolve():
            modules.append((module, source))
    return find_change(function, modules)


def _describe_notebook_code(function: Callable) -> dict[str, Any]:
    """Return the reference to a function of a notebook, whose file is executed once as a test."""
    name = function.__name__
    try:
        content = read_notebook_source(function).encode()
    except ValueError as error:
        raise UserError(str(error)) from error
    path = Path("<notebook>", FILE)  # no such file: the notebook's functions have no other
    program = Program(FILE, _read_sources(FILE, path, [os.getcwd()], content))
    program = _find_loaded(FILE, program.digests, name) or program
    if program.module is None:
        program.execute()
    attributes = getattr(function, "__dict__", {}).keys()
    if missing := sorted(attributes - getattr(program.find(name), "__dict__", {}).keys()):
        raise UserError(
            f"{name}.{missing[0]} can't be recorded: set it in the cell that defines {name}"
        )
    definitions = vars(sys.modules["__main__"]) | {name: function}
    values = named_values(content, program.module)
    for each, copy in vars(program.module).items():
        live = definitions.get(each)
        if is_notebook_code(live) and (change := find_changed_value(live, copy, values)):
            raise UserError(f"{each} {change}: run the cell that defines {each} again")
    kind = "class" if isinstance(function, type) else "function"
    return {"kind": kind, "file": FILE, "name": name, "sha256": program.digests}


def _describe_partial_or_library(function: Callable) -> dict[str, Any]:
    try:
        if not isinstance(function, functools.partial):
            return describe_library_code(function)
        args, kwargs = map(describe_arguments, (function.args, function.keywords))
    except ValueError as error:
        raise UserError(str(error)) from error
    inner = describe_code(function.func)
    return {"kind": "partial", "function": inner, "args": args, "kwargs": kwargs}


def find_code(reference: Any) -> Callable:
    """Return the function or the class that `describe_code` has described.

    A program that this process has loaded, or that came with tlite, is preferred to the copy in the
    folder of `allow_code`.

    Raises:
        ValueError: `reference` is not a description of a function.
        UserError: there is no copy, it was changed, the user has not consented to execute it, or it
            has no such function.
    """
    kind = reference.get("kind") if isinstance(reference, dict) else None
    if kind == "library":
        return find_library_code(reference)
    if kind == "partial" and {"function", "args", "kwargs"} <= reference.keys():
        args, kwargs = map(find_arguments, (reference["args"], reference["kwargs"]))
        return functools.partial(find_code(reference["function"]), *args, **kwargs)
    try:
        kind, file, name, digests = (reference[key] for key in ("kind", "file", "name", "sha256"))
        texts = kind, file, name, digests[file], *digests, *digests.values()
        if {*map(type, texts)} != {str} or not all(map(_is_source, digests, digests.values())):
            raise TypeError
    except (TypeError, KeyError, AttributeError) as error:
        text = f"expected a function's file, name and SHA-256, not {reference!r:.80}"
        raise ValueError(text) from error
    program = _find_loaded(file, digests, name)
    if program is None and (path := EXPERIMENTS / os.path.basename(file)).is_file():
        shipped = read_program(path)
        program = shipped if (shipped.file, shipped.digests) == (file, digests) else None
    if program is None:
        program = _read_copy(file, digests, name)
    if program.module is None:
        program.execute()
    function = program.find(name)
    expected = {"kind": kind, "file": file, "name": name, "sha256": digests}
    if not callable(function) or describe_code(function) != expected:
        raise UserError(f"there is no {kind} {name} in {file}")
    return function


def _is_source(file: str, digest: str) -> bool:
    """Return True for a relative path of a Python file and a SHA-256."""
    is_path = file.endswith(".py") and {"", ".", ".."}.isdisjoint(file.split("/"))
    return is_path and re.fullmatch("[0-9a-f]{64}", digest) is not None


def _find_loaded(file: str, digests: dict[str, str], name: str) -> Program | None:
    """Return the program with these files that this process has loaded last."""
    same = (p for p in reversed(_programs.values()) if (p.file, p.digests) == (file, digests))
    return next((program for program in same if callable(program.find(name))), None)


# Copies in the folder of a run, and consent


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


def write_code(folder: Path, config: Any) -> None:
    """Write copies of the files that a config as JSON refers to, if any, into a new folder."""
    paths = {}
    for program in _loaded_programs(config):
        for name, source in program.sources.items():
            folder.mkdir(exist_ok=True)
            (folder / f"{program.digests[name]}.py").write_bytes(source.content)
            paths[program.digests[name]] = str(source.original.resolve())
    if paths:
        (folder / PATHS).write_text(json.dumps(paths, indent=2), encoding="utf-8")


def remember_code(config: Any) -> None:
    """Remember this user's consent to the loaded programs that a config as JSON refers to."""
    for program in _loaded_programs(config):
        with contextlib.suppress(OSError, RuntimeError):  # no home folder, or a full disk
            path = _consent_path(program.file, program.digests)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.touch(mode=0o600)


def _loaded_programs(config: Any) -> list[Program]:
    """Return the loaded programs that a config refers to."""
    if isinstance(config, list | tuple):
        return [program for value in config for program in _loaded_programs(value)]
    if not isinstance(config, dict):
        return []
    programs = _loaded_programs([*config.values()])
    if isinstance(digests := config.get("sha256"), dict) and "name" in config:
        program = _find_loaded(config["file"], digests, config["name"])
        programs += [program] if program else []
    return programs


def _consent_path(file: str, digests: dict[str, str]) -> Path:
    """Return the path of an empty file that exists if this user has trained with a program."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    program = json.dumps([file, digests], sort_keys=True).encode()
    return Path(state, "tlite", "trusted", hashlib.sha256(program).hexdigest())


def _read_copy(file: str, digests: dict[str, str], name: str) -> Program:
    """Return the program in the folder of `allow_code` if its files are those of the digests."""
    folder, has_consent = _allowed.get()
    if folder is None:
        raise UserError(f"{name} of {file} is not loaded, and there is no copy of it here")
    paths, sources = {}, {}
    with contextlib.suppress(OSError, ValueError, RecursionError):  # only for messages
        paths = json.loads((folder / PATHS).read_text(encoding="utf-8"))
    for each, digest in digests.items():
        copy = folder / f"{digest}.py"
        try:
            content = copy.read_bytes()
        except OSError as error:
            reason = f"can't read {copy} (the run's copy of {each}): {system_reason(error)}"
            raise UserError(reason) from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise UserError(f"{copy} has changed: it is not the {each} that the run was made with")
        original = paths.get(digest) if isinstance(paths, dict) else None
        original = original if isinstance(original, str) else folder / each
        sources[each] = Source(content, copy, Path(original))
    with contextlib.suppress(OSError, RuntimeError):  # no home folder
        has_consent = has_consent or _consent_path(file, digests).is_file()
    if not has_consent:
        raise UserError(
            f"the run uses {name} of {file}, which you have not trained with: read "
            f"{sources[file].path} and, to execute it, add --trust (in Python trust=True)"
        )
    for content, copy, original in sources.values():
        with contextlib.suppress(OSError):
            if original.is_file() and original.read_bytes() != content:
                changed = f"{original} has changed since the run was created"
                warning = f"warning: {changed}: the run uses its copy {copy}"
                print(printable(warning), file=sys.stderr)
    return Program(file, sources)
