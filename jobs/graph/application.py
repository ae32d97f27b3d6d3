"""An application: the operators of one Python module, found by name, dotted module or file."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import pkgutil
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from drainmark.jobs.errors import DrainmarkError, Location, UnknownName, UsageError
from drainmark.jobs.errors.environment import ApplicationBroken
from drainmark.jobs.graph.composite_instance import CompositeInstance
from drainmark.jobs.graph.composites import expanded
from drainmark.jobs.graph.declarations import MODULE_ATTRIBUTE, Declarations, declaring
from drainmark.jobs.graph.operator import Operator
from drainmark.jobs.graph.own_modules import authors_line, own_modules_importable
from drainmark.jobs.graph.params import Params
from drainmark.jobs.graph.sessionless import module_loading
from drainmark.jobs.printable import shell_word

_FILE_MODULE = "drainmark_application_"
_TOO_MANY = re.compile(
    r"(?P<name>\w+)(?:\.__init__)?\(\) takes (?:from \d+ to )?(?P<taken>\d+) positional arguments? but (?P<given>\d+)"
)
_UNKNOWN_ARGUMENT = re.compile(r"(?P<name>\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(?P<given>.*?)'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    """The declared graph.

    Attributes:
        name: the module's last name.
        operators: in the order of declaration.
        params_class: the application's Params, or the empty base.
        origin: path of the file that declares it, "" when built by hand.
        composites: instances in the order of their completion: an inner instance comes before its outer one.
    """

    name: str
    operators: tuple[Operator, ...]
    params_class: type[Params] = Params
    origin: str = ""
    composites: tuple[CompositeInstance, ...] = ()

    def operator(self, name: str) -> Operator:
        """Return the operator of that name.

        Raises:
            UnknownName: there is none; the message names the nearest.
        """
        for operator in self.operators:
            if operator.name == name:
                return operator
        raise UnknownName(
            f"application {self.name!r} has no operator {name!r}",
            remedy=nearest(name, [operator.name for operator in self.operators]),
        )


def nearest(name: str, known: list[str], *, below: str = "") -> str:
    """Return 'did you mean …' with the closest known name, else the list of them.

    Args:
        below: common prefix of all names; the comparison leaves it out.
    """
    return guess(name, known, below=below) or f"known: {', '.join(sorted(known)) or 'none'}"


def guess(name: str, known: Iterable[str], *, below: str = "") -> str:
    """Return 'did you mean …' with the closest known name; "" if none is close. See `nearest`."""
    close = difflib.get_close_matches(name.removeprefix(below), [each.removeprefix(below) for each in known], n=1)
    return f"did you mean {below + close[0]!r}?" if close else ""


@contextmanager
def application(name: str) -> Iterator[Declarations]:
    """Declare an application outside of a module of its own: `with dm.application("demo") as declared: …`.

    Example:
        with dm.application("little") as declared:

            @dm.consistent(trigger="operator-driven")
            @dm.source(dm.DirectoryScan(path="inbox", format="text"))
            def lines(scanned):
                return scanned

            dm.sink(lines, dm.DeltaAppend("kept_lines"))

        print(dm.build_application(declared).operator("lines"))
    """
    with declaring(Declarations(name)) as declarations:
        yield declarations


def build_application(declarations: Declarations, *, origin: str = "") -> Application:
    """Turn declarations into an application, with all composites expanded.

    Example:
        with dm.application("little") as declared:

            @dm.consistent(trigger="operator-driven")
            @dm.source(dm.DirectoryScan(path="inbox", format="text"))
            def lines(scanned):
                return scanned

            dm.sink(lines, dm.DeltaAppend("kept_lines"))

        application = dm.build_application(declared)
        print([operator.name for operator in application.operators])  # ['lines', 'kept_lines_sink']
    """
    wanted = {
        params_class
        for operator in declarations.operators
        for params_class in getattr(getattr(operator, "function", None), "params", {}).values()
    }
    if len(wanted) > 1:
        names = ", ".join(sorted(cls.__qualname__ for cls in wanted))
        msg = f"application {declarations.name!r} asks for several parameter classes: {names}"
        raise UsageError(msg, remedy="derive one class from dm.Params and use it everywhere")
    for params_class in wanted:
        _require_defaults(declarations.name, params_class)
    return Application(
        name=declarations.name,
        operators=expanded(declarations.operators, declarations.composites),
        params_class=wanted.pop() if wanted else Params,
        origin=origin,
        composites=tuple(declarations.composites),
    )


def _require_defaults(application: str, params_class: type[Params]) -> None:
    """Raise UsageError for a parameter without a default: most verbs, and sensors that start runs, give no values."""
    lacking = [name for name, field in params_class.model_fields.items() if field.is_required()]
    if lacking:
        location = None
        with suppress(OSError, TypeError):  # the class is in no file
            file, line = inspect.getsourcefile(params_class), inspect.getsourcelines(params_class)[1]
            location = Location(file or "", line)
        shown = f"{params_class.__qualname__}.{lacking[0]}"
        msg = f"parameter {shown} of application {application!r} has no default"
        raise UsageError(msg, location=location, remedy=f"give it one: {lacking[0]}: … = …; --set overrides it")


def load_application(reference: str) -> Application:
    """Import an application by name, module or file.

    Args:
        reference: the name of a module in `jobs/apps`, a dotted module, or the path of a Python file.

    Raises:
        UnknownName: there is no such module or file.
        UsageError: the module declares no operator, or a module beside it has the name of an installed one.
        DeclarationError: it needs a Spark session to be loaded.
        ApplicationBroken: the import fails for any other reason; the message names the author's line.

    Example:
        application = dm.load_application("shop.py")
        print(application.name, [operator.name for operator in application.operators])
    """
    return application_of(_module_of(reference))


def application_of(module: ModuleType) -> Application:
    """Return the application that an imported module declares.

    Raises:
        UsageError: the module declares no operator.
    """
    declarations = getattr(module, MODULE_ATTRIBUTE, None)
    if not isinstance(declarations, Declarations) or not declarations.operators:
        msg = f"{module.__file__ or module.__name__!r} declares no operators"
        raise UsageError(msg, remedy="declare at least a @dm.source and a dm.sink in the module")
    name = module.__name__.rpartition(".")[2].removeprefix(_FILE_MODULE)
    return build_application(dataclasses.replace(declarations, name=name), origin=module.__file__ or "")


def shipped_applications() -> tuple[str, ...]:
    """Return the names of the modules in `jobs/apps`."""
    package = importlib.import_module("drainmark.jobs.apps")
    return tuple(sorted(module.name for module in pkgutil.iter_modules(package.__path__)))


def _module_of(reference: str) -> ModuleType:
    try:
        return _imported(reference)
    except DrainmarkError as error:
        error.location = error.location or _location_of(error)
        raise
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also SystemExit: its exit code could look like success
        raise _broken(reference, error) from error


def _broken(reference: str, error: BaseException) -> ApplicationBroken:
    location = _location_of(error)
    where = f" ({location})" if location is not None else ""
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    said, remedy = (
        _nameless_arguments(error)
        or _unknown_argument(error)
        or (f"{type(error).__name__}: {text}", "fix it, or install the missing package")
    )
    return ApplicationBroken(
        f"application {reference!r} cannot be loaded: {said}{where}",
        location=location,
        remedy=f"{remedy}; drainmark graph {shell_word(reference)} tries it",
    )


def _nameless_arguments(error: BaseException) -> tuple[str, str] | None:
    """Return the fault and the right call if a function of ours got arguments without names, else None."""
    call = _call_of_ours(_TOO_MANY, error)
    if call is None:
        return None
    found, called = call
    parameters = inspect.signature(called).parameters.values()
    names = [each.name for each in parameters if each.kind is each.KEYWORD_ONLY]
    before = [f"{each.name}, " for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    taken = int(found["taken"])
    if not names or taken != len(before) + isinstance(called, type):  # not a function of ours
        return None
    count = int(found["given"]) - taken
    right = f"dm.{found['name']}({''.join(before)}{', '.join(f'{name}=…' for name in names[:count])})"
    without = "1 argument without its name" if count == 1 else f"{count} arguments without their names"
    return f"dm.{found['name']} was given {without}", f"write {right}"


def _unknown_argument(error: BaseException) -> tuple[str, str] | None:
    """Return the fault and the nearest argument if a function of ours got one that it does not have, else None."""
    call = _call_of_ours(_UNKNOWN_ARGUMENT, error)
    if call is None:
        return None
    found, called = call
    known = list(inspect.signature(called).parameters)
    if found["given"] in known:  # not a function of ours
        return None
    return f"dm.{found['name']} has no argument {found['given']!r}", nearest(found["given"], known)


def _call_of_ours(told: re.Pattern[str], error: BaseException) -> tuple[re.Match[str], Callable[..., Any]] | None:
    """Return what Python told about a wrong call, and the function of ours that has the called name, if one has."""
    found = told.match(str(error)) if isinstance(error, TypeError) else None
    called = getattr(importlib.import_module("drainmark"), found["name"], None) if found is not None else None
    return (found, called) if found is not None and callable(called) else None


def _location_of(error: BaseException) -> Location | None:
    """Return the author's line at which an import failed."""
    if isinstance(error, SyntaxError) and error.filename:
        return Location(file=error.filename, line=error.lineno or 0)
    stack = traceback.extract_tb(error.__traceback__)
    return authors_line((frame.filename, frame.lineno) for frame in reversed(stack))


def _imported(reference: str) -> ModuleType:
    if reference.endswith(".py") or "/" in reference:
        return _module_of_file(Path(reference))
    if reference in shipped_applications():
        return importlib.import_module(f"drainmark.jobs.apps.{reference}")
    try:
        found = importlib.util.find_spec(reference)
    except (ImportError, ValueError):
        found = None
    if found is None or "." not in reference:
        listed = "give its Python file, or a name that `drainmark apps` lists"
        raise UnknownName(
            f"there is no application {reference!r}: no name that is known here, no dotted module, no Python file",
            remedy=guess(reference, shipped_applications()) or listed,
        )
    with module_loading(reference):
        return importlib.import_module(reference)


def file_of(reference: str) -> Path | None:
    """Return the file of an application by its reference, None if it is unknown; the file need not exist."""
    if reference.endswith(".py") or "/" in reference:
        return Path(reference)
    module = f"drainmark.jobs.apps.{reference}" if reference in shipped_applications() else reference
    with suppress(ImportError, ValueError):
        found = importlib.util.find_spec(module) if "." in module else None
        return Path(found.origin) if found is not None and found.origin is not None else None
    return None


def _module_of_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UnknownName(f"there is no file {str(path)!r}", remedy="give the path of the application's Python file")
    name = f"{_FILE_MODULE}{path.stem}"  # an application called json must not hide the module json
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise UnknownName(f"{str(path)!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    with module_loading(path.stem), own_modules_importable(path):
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return module
