"""The console scripts of the runtime, and the common part of all console scripts of txport.

Only the standard library is imported at the top, so that a missing library can be reported in one sentence.
"""

import importlib
import os
import sys
from typing import NoReturn

from txport.runtime.console.words import printable, program
from txport.runtime.errors import ResourceError, TxportError
from txport.runtime.libraries import needs

# Exit codes of shells for a program that was ended by Ctrl-C or by a closed pipe.
INTERRUPTED = 130
CLOSED_PIPE = 141


def translate() -> NoReturn:
    """Run tx-translate."""
    run_command("txport.runtime.translate_command", extra="")


def translate_corpus() -> NoReturn:
    """Run tx-translate-corpus."""
    run_command("txport.runtime.corpus.command", extra="")


def inspect() -> NoReturn:
    """Run tx-inspect."""
    run_command("txport.runtime.inspect_command", extra="")


def pack() -> NoReturn:
    """Run tx-pack."""
    run_command("txport.runtime.bundle.pack_command", extra="")


def serve() -> NoReturn:
    """Run tx-serve."""
    run_command("txport.runtime.serve.command", extra="serve")


def triton() -> NoReturn:
    """Run tx-triton."""
    run_command("txport.runtime.serve.triton_command", extra="")


def run_command(module: str, extra: str) -> NoReturn:
    """Import a module, run its click command `main` on the arguments of this process, and exit.

    Errors that a user can cause, and errors of the file system such as a full disk, print one sentence on standard
    error. The exit code is 2 for bad use and 1 for a failed check. Ctrl-C prints one word. A closed pipe, as with
    `| head`, prints nothing.

    Args:
        module: the module of the command.
        extra: the extra of txport that installs the libraries of the module; "" if the base is enough.
    """
    try:
        code = _run(module, extra)
        if sys.stdout is not None:  # it is None if standard output is closed
            sys.stdout.flush()
    except TxportError as error:
        print(f"{program()}: {printable(error)}", file=sys.stderr)
        code = error.exit_code
    except MemoryError:
        print(f"{program()}: there is not enough memory", file=sys.stderr)
        code = ResourceError.exit_code
    except KeyboardInterrupt:
        print(f"{program()}: interrupted", file=sys.stderr)
        code = INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        code = CLOSED_PIPE
    except OSError as error:
        place = printable(error.filename or "the output")
        print(f"{program()}: {place} cannot be read or written: {error.strerror or error}", file=sys.stderr)
        _discard_output()
        code = ResourceError.exit_code
    except SystemExit as leaving:
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        code = CLOSED_PIPE  # rich has met the closed pipe and discarded the output
    sys.exit(code)


def _discard_output() -> None:
    """Discard buffered output. Otherwise the interpreter would try to write it at exit and report the error again."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(module: str, extra: str) -> int:
    with needs(extra):
        import click

        command = importlib.import_module(module).main
    if not any(option.name == "version" for option in command.params):
        click.version_option(package_name="txport", prog_name=program(), message="%(prog)s %(version)s")(command)
    # click's own `main` is not used because it handles a closed pipe and Ctrl-C differently.
    try:
        with command.make_context(program(), sys.argv[1:]) as context:
            command.invoke(context)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return 0
