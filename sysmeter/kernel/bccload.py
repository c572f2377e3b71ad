"""The only home of bcc: import it, compile with it, load and attach with it, and translate its failures.

bcc prints from C, raises bare ``Exception`` and sometimes leaves the process. Every way out of here is a
return or a :class:`KernelError`. The text bcc printed is in ``ProbeLoadError.detail``.
"""

from __future__ import annotations

import atexit
import importlib
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sysmeter.errors import KernelError
from sysmeter.kernel.outputcapture import captured_output
from sysmeter.kernel.privileges import lockdown_mode
from sysmeter.kernel.source import SHIM_DIR

KERNEL_SOURCE_VARIABLE = "SYSMETER_KERNEL_SOURCE"
"""Environment variable: a directory of real kernel headers to use in place of the shim."""

INSTALL_HINT = (
    "install the distribution's package (Debian, Ubuntu: apt install python3-bpfcc; Fedora: dnf install "
    "python3-bcc; Arch: pacman -S python-bcc) and start sysmeter by scripts/sysmeter, which links it in; "
    "never pip install bcc"
)

_T = TypeVar("_T")


class ProbeLoadError(KernelError):
    """The probes did not compile, load or attach. ``detail`` is all that the compiler or verifier printed."""

    def __init__(self, message: str, hint: str = "", detail: str = "") -> None:
        super().__init__(message, hint)
        self.detail = detail


def import_bcc() -> Any:
    """The module ``bcc`` of the BPF Compiler Collection.

    Raises:
        KernelError: it is absent, broken, or another project of the same name.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module = importlib.import_module("bcc")
    except ModuleNotFoundError as error:
        if error.name in ("bcc", None):
            raise KernelError("bcc, the BPF Compiler Collection, is not installed", INSTALL_HINT) from error
        raise KernelError(f"bcc cannot be imported: {error}", INSTALL_HINT) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a foreign module may do anything at import, sys.exit included
        raise KernelError(f"bcc cannot be imported: {type(error).__name__}: {error}", INSTALL_HINT) from error
    if not (hasattr(module, "BPF") and hasattr(module, "lib")):
        where = getattr(module, "__file__", None) or "an unknown place"
        raise KernelError(
            f"the Python module bcc at {where} is not the BPF Compiler Collection but a namesake",
            f"remove it (pip uninstall bcc), then {INSTALL_HINT}",
        )
    return module


class LoadedProgram:
    """One compiled translation unit. Programs are loaded and attached one by one; ``close`` undoes all of it.

    Everything hangs on file descriptors of this process: when it dies, by whatever means, the kernel
    detaches all.
    """

    def __init__(self, text: str, defines: dict[str, int]) -> None:
        """Compile ``text`` and create its maps. Attaches nothing.

        Raises:
            KernelError: no bcc; the compiler or the kernel refused (:class:`ProbeLoadError`).
        """
        self._bcc = import_bcc()
        unattached: Any = type("Unattached", (self._bcc.BPF,), {"_trace_autoload": lambda _self: None})
        # Two steps, so that the object can be cleaned up when its constructor fails half-way.
        self._bpf: Any = unattached.__new__(unattached)
        flags = [f"-D{name}={value}" for name, value in defines.items()]
        try:
            with _kernel_source():
                _translated("compile", lambda: self._bpf.__init__(text=text.encode(), cflags=flags))
        except BaseException:
            self.close()
            raise

    def load_raw(self, function: str) -> int:
        """Load ``function`` for a raw tracepoint, unattached; its descriptor. Raises ProbeLoadError."""
        return self._load(function, self._bcc.BPF.RAW_TRACEPOINT)

    def load_uprobe(self, function: str) -> int:
        """Load ``function`` for a uprobe, unattached; its descriptor. Raises ProbeLoadError."""
        return self._load(function, self._bcc.BPF.KPROBE)  # to the kernel both are of one kind

    def _load(self, function: str, kind: int) -> int:
        load = self._bpf.load_func
        return int(_translated("load", lambda: load(function.encode(), kind)).fd)

    def attach(self, function: str, category: str, event: str, raw: bool) -> int:
        """Load and attach ``function``; the program's descriptor. Raises ProbeLoadError."""
        name = function.encode()
        if raw:
            _translated("attach", lambda: self._bpf.attach_raw_tracepoint(tp=event.encode(), fn_name=name))
        else:
            point = f"{category}:{event}".encode()
            _translated("attach", lambda: self._bpf.attach_tracepoint(tp=point, fn_name=name))
        return int(self._bpf.funcs[name].fd)

    def map_fd(self, name: str) -> int:
        """Descriptor of the map ``name``; -1 if no loaded code uses it."""
        return int(self._bcc.lib.bpf_table_fd(self._bpf.module, name.encode()))

    def close(self) -> None:
        """Detach every program and release every descriptor. May be called again."""
        bpf, self._bpf = self._bpf, None
        if bpf is None:
            return
        atexit.unregister(bpf.cleanup)
        if getattr(bpf, "_ringbuf_manager", bpf) is bpf:
            return  # the constructor did not get as far as owning anything
        _translated("detach", bpf.cleanup)


@contextmanager
def _kernel_source() -> Iterator[None]:
    """bcc's variable for the header directory, set inside the block and put back after it."""
    chosen = os.environ.get(KERNEL_SOURCE_VARIABLE) or str(SHIM_DIR)
    if not os.path.isdir(chosen):
        raise KernelError(
            f"the directory of kernel headers {chosen} does not exist",
            f"unset {KERNEL_SOURCE_VARIABLE}, or use a complete checkout of the project",
        )
    before = os.environ.get("BCC_KERNEL_SOURCE")
    os.environ["BCC_KERNEL_SOURCE"] = chosen
    try:
        yield
    finally:
        if before is None:
            del os.environ["BCC_KERNEL_SOURCE"]
        else:
            os.environ["BCC_KERNEL_SOURCE"] = before


def _translated(step: str, call: Callable[[], _T]) -> _T:
    failure: BaseException | None = None
    result: _T | None = None
    with captured_output() as captured:
        try:
            result = call()
        except KeyboardInterrupt:
            raise
        except (Exception, SystemExit) as error:
            failure = error
    if failure is not None:
        raise explain_failure(step, failure, captured.text) from failure
    return result  # type: ignore[return-value]  # None only where call() returns None


def explain_failure(step: str, failure: BaseException, printed: str) -> ProbeLoadError:
    """The user's version of a failure of bcc.

    Args:
        step: what was tried: ``compile``, ``load``, ``attach`` or ``detach``.
        failure: what bcc raised.
        printed: what it printed meanwhile.
    """
    text = f"{printed}\n{failure}"
    detail = text.strip()
    if "Unable to find kernel headers" in text:
        return ProbeLoadError(
            "bcc did not accept the directory of kernel headers",
            f"unset {KERNEL_SOURCE_VARIABLE} to use sysmeter's own",
            detail,
        )
    if re.search(r"Operation not permitted|Need super-user|Permission denied.*bpf", text):
        mode = lockdown_mode()
        if mode == "confidentiality":
            return ProbeLoadError(
                "the kernel refused BPF: it is locked down in the mode confidentiality",
                "boot without lockdown=confidentiality (or secure boot), or run with --no-probes",
                detail,
            )
        return ProbeLoadError(
            "the kernel refused BPF: operation not permitted",
            "in a container: docker run --privileged (seccomp forbids bpf otherwise), or use --no-probes",
            detail,
        )
    if re.search(r"could not open bpf map.*Cannot allocate memory|ENOMEM", text):
        return ProbeLoadError(
            "the kernel has no memory for the probes' ring buffers",
            "ask for smaller rings, or free memory",
            detail,
        )
    if re.search(r"could not open bpf map: \w*ring.*Invalid argument", text):
        return ProbeLoadError(
            "this kernel has no BPF ring buffers",
            "Linux 5.8 or later is needed; or run with --no-probes",
            detail,
        )
    first_error = re.search(r"^.*?(?:error:|Error:).*$", printed, re.MULTILINE)
    reason = first_error.group(0).strip() if first_error else str(failure) or type(failure).__name__
    verb = {
        "compile": "compile",
        "load": "pass the kernel's verifier",
        "attach": "attach",
        "detach": "detach",
    }[step]
    return ProbeLoadError(
        f"the probes did not {verb}: {reason}",
        "run with --no-probes to measure without kernel events",
        detail,
    )
