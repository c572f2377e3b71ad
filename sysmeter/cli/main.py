"""The command ``sysmeter``: finds commands lazily, and turns every failure into words and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from typing import Any

import click

from sysmeter import __version__
from sysmeter.cli.streams import ensure_standard_streams, mute, say
from sysmeter.errors import EXIT_ERROR, EXIT_INTERRUPTED, EXIT_USAGE, SysmeterError

# Name: (module that holds a click command of that name, its line in --help). The module is imported only
# when the command is used, so --help does not pay for numpy.
_COMMANDS = {
    "run": ("sysmeter.cli.run", "Measure the capstone loop and say where its latency tail comes from."),
    "live": ("sysmeter.cli.live", "Measure a Python workload and what its garbage collector does to it."),
    "verify": ("sysmeter.cli.verify", "Show what each swap breaks and moves, and that it changes no decision."),
    "diagnose": ("sysmeter.cli.diagnose", "Name the cause of each slow moment of a Recording; needs no root."),
    "selftest": ("sysmeter.cli.selftest", "Inject known causes and show that the diagnosis names each of them."),
    "report": ("sysmeter.cli.report", "Print the result of a Recording again; needs no root."),
    "decisions": ("sysmeter.cli.decisions", "Compare what two runs decided; needs no root."),
    "hist": ("sysmeter.cli.hist", "Show and merge files of histograms; needs no root."),
    "omission": ("sysmeter.cli.omission", "Show what a test that waits for responses leaves out; needs no root."),
    "checklist": ("sysmeter.cli.checklist", "Say which habits of honest measuring a Recording shows; needs no root."),
    "probes": ("sysmeter.cli.probes", "List the kernel probes, what they attach to and what they prove."),
    "feed": ("sysmeter.cli.feed", "Make and inspect message files."),
}

DEBUG_VARIABLE = "SYSMETER_DEBUG"


class _LazyGroup(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(_COMMANDS[cmd_name][0]), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="Exit codes: 0 success, 1 error, 2 usage, 3 a claim or goal failed, 4 not proven, 130 interrupted (what "
    "was measured is saved).",
)
@click.version_option(__version__, message="sysmeter %(version)s")
def cli() -> None:
    """Measure a low-latency loop, and prove where its slow moments come from."""


def main(arguments: list[str]) -> int:
    """Run one command line; every failure becomes a message and a hint on stderr. Returns the exit code."""
    try:
        ensure_standard_streams()
        result: Any = cli.main(arguments, prog_name="sysmeter", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        with contextlib.suppress(OSError):
            click.echo(error.format_message(), err=True)
        return EXIT_USAGE
    except click.ClickException as error:
        _say("error", error.format_message())
        if isinstance(error, click.UsageError) and error.ctx is not None:
            _say("hint", f"see `{error.ctx.command_path} --help`")
        return error.exit_code
    except SysmeterError as error:
        _say("error", error.message)
        if error.hint:
            _say("hint", error.hint)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        _say("error", "interrupted")
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head -1`) has what it wanted. Python flushes stdout once more on its way out.
        mute(sys.stdout)
        return 128 + signal.SIGPIPE
    except OSError as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        _say("error", f"{error.strerror}: {error.filename}" if error.filename else str(error.strerror or error))
        mute(sys.stdout)
        return EXIT_ERROR
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        _say("error", f"sysmeter itself failed: {type(error).__name__}: {error}")
        _say("hint", f"please report it with the traceback that {DEBUG_VARIABLE}=1 shows")
        return EXIT_ERROR
    return result if isinstance(result, int) else 0


def _say(kind: str, text: str) -> None:
    say(f"{kind}: {text}")
