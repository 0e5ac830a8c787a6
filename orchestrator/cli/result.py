"""Results of commands, their JSON, and the wrapper that runs every command.

A command returns a `Result`. With `--json`, only the result reaches stdout; everything that
libraries and child processes print goes to stderr.
"""

import contextlib
import copy
import functools
import inspect
import json
import os
import select
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TextIO, get_args, get_origin

import typer

from orchestrator.cli.exit_codes import ExitCode
from orchestrator.cli.options import Debug
from orchestrator.report.terminal import json_without_controls
from search_spaces.safety.files import packaged_table

JSON_VERSION = 4  # of all documents; grows when a field is removed or changes its meaning
_STDOUT, _STDERR = 1, 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a command: its kind of document, its content and the exit code."""

    kind: str
    content: Callable[[], Any]  # called only if JSON is written
    code: ExitCode = ExitCode.DONE


def result_to_json(result: Result) -> str:
    """Returns the document that `--json` prints; docs/cli.md describes it."""
    document = {"kind": result.kind, "version": JSON_VERSION, "result": result.content()}
    text = json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)
    return json_without_controls(text) + "\n"


def as_command(command: Callable[..., Result | None]) -> Callable[..., None]:
    """Wraps a command for typer: adds `--debug` and texts of `--help`, and prints a JSON result."""

    @functools.wraps(command)
    def run(*, debug: bool = False, **options: Any) -> None:
        with _debugging() if debug else contextlib.nullcontext(), _reader():
            if options.get("as_json"):
                with reserved_stdout() as stdout:
                    result = command(**options)
                    if result is not None:
                        stdout.write(result_to_json(result))
            else:
                result = command(**options)
        if result is not None and result.code is not ExitCode.DONE:
            raise typer.Exit(result.code)

    option = inspect.Parameter(
        "debug", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Debug
    )
    signature = inspect.signature(command, eval_str=True)
    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[
            _with_help(parameter, command.__name__)
            for parameter in (*signature.parameters.values(), option)
        ],
        return_annotation=None,
    )
    run.__annotations__ = {**command.__annotations__, "debug": Debug, "return": None}
    return run


def _with_help(parameter: inspect.Parameter, command: str) -> inspect.Parameter:
    """Adds the text of help.yaml to an argument or option, unless code has made one of names."""
    if get_origin(parameter.annotation) is not Annotated:  # typer's context
        return parameter
    kind, info = get_args(parameter.annotation)
    if info.help is None:
        texts, info = packaged_table(__package__, "help.yaml"), copy.copy(info)
        info.help = (texts["shared"] | texts.get(command, {}))[parameter.name]
    return parameter.replace(annotation=Annotated[kind, info])


@contextlib.contextmanager
def reserved_stdout() -> Iterator[TextIO]:
    """Yields stdout to one writer; all other output goes to stderr until the context ends."""
    before = sys.stdout
    before.flush()
    with contextlib.ExitStack() as stack:
        stream = before
        if _is_stdout(before):
            stream = stack.enter_context(os.fdopen(os.dup(_STDOUT), "w", encoding="utf-8"))
            stack.callback(os.dup2, stream.fileno(), _STDOUT)
            stack.callback(before.flush)  # a logger that holds the stream may not have flushed
            os.dup2(_STDERR, _STDOUT)
        stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        yield stream


def _is_stdout(stream: TextIO) -> bool:
    try:
        return stream.fileno() == _STDOUT
    except (OSError, ValueError):  # an in-memory stream
        return False


@contextlib.contextmanager
def _reader() -> Iterator[None]:
    """Ends the command in silence once nobody reads stdout any more."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        poll = select.poll()
        poll.register(_STDOUT, 0)
        if not poll.poll(0):  # another pipe or socket
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), _STDOUT)
        raise SystemExit(ExitCode.NO_READER) from None


@contextlib.contextmanager
def _debugging() -> Iterator[None]:
    """Shows Ray's logs, and prints the traceback of an exception that ends the command."""
    from orchestrator.cluster.runtime import RAY_LOGS_VARIABLE

    os.environ[RAY_LOGS_VARIABLE] = "1"
    try:
        yield
    except Exception:
        traceback.print_exc()
        raise
    finally:
        del os.environ[RAY_LOGS_VARIABLE]
