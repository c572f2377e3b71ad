"""All of the capstone's unsafe code: atomics, raw memory, and C functions called by name from compiled code.

Every function here is a numba intrinsic. Addresses are plain int64; nothing checks them. Names of C
functions are resolved by the JIT's linker in the running process, so compiled code stays cacheable.
"""

from __future__ import annotations

import ctypes
import platform

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

_CLOCK_MONOTONIC = 1
_CLOCK_THREAD_CPUTIME = 3
_RUSAGE_THREAD = 1
_MADV_DONTNEED = 4

# mallinfo2 (glibc 2.33 and later) returns its struct through a hidden pointer; only on x86-64 is that an
# ordinary first argument.
HAS_MALLINFO = platform.machine() == "x86_64" and hasattr(ctypes.CDLL(None), "mallinfo2")

_I64 = ir.IntType(64)
_I32 = ir.IntType(32)
_WORD_BYTES = 8


def _pointer(builder, address):
    return builder.inttoptr(address, _I64.as_pointer())


def _call(builder, name, result, arguments, values):
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, arguments), name)
    return builder.call(function, values)


@intrinsic
def as_pointer(typingctx, address):
    """The int64 ``address`` as a pointer to int64, for ``numba.carray``, which allocates nothing."""

    def codegen(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), codegen


@intrinsic
def load_acquire(typingctx, address):
    """Atomic load of the int64 at ``address``. A plain load in a spin loop may be hoisted out of it."""

    def codegen(context, builder, signature, args):
        return builder.load_atomic(_pointer(builder, args[0]), "acquire", _WORD_BYTES)

    return types.int64(types.int64), codegen


@intrinsic
def store_release(typingctx, address, value):
    """Atomic store to the int64 at ``address``: all that was written before is seen by who loads it."""

    def codegen(context, builder, signature, args):
        builder.store_atomic(args[1], _pointer(builder, args[0]), "release", _WORD_BYTES)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _read_clock(builder, clock):
    # alloca_once puts the timespec in the entry block: an alloca in a loop would overflow the stack.
    timespec = cgutils.alloca_once(builder, _I64, size=2)
    arguments = [_I32, _I64.as_pointer()]
    _call(builder, "clock_gettime", _I32, arguments, [_I32(clock), timespec])
    seconds = builder.load(timespec)
    nanoseconds = builder.load(builder.gep(timespec, [_I64(1)]))
    return builder.add(builder.mul(seconds, _I64(1_000_000_000)), nanoseconds)


@intrinsic
def clock_ns(typingctx):
    """CLOCK_MONOTONIC in ns, through the vDSO."""

    def codegen(context, builder, signature, args):
        return _read_clock(builder, _CLOCK_MONOTONIC)

    return types.int64(), codegen


@intrinsic
def thread_cpu_ns(typingctx):
    """The CPU time this thread has used (CLOCK_THREAD_CPUTIME_ID) in ns: a system call."""

    def codegen(context, builder, signature, args):
        return _read_clock(builder, _CLOCK_THREAD_CPUTIME)

    return types.int64(), codegen


@intrinsic
def thread_rusage(typingctx, address):
    """getrusage(RUSAGE_THREAD) into the 18 words at ``address``; 0 when it worked."""

    def codegen(context, builder, signature, args):
        arguments = [_I32, _I64.as_pointer()]
        values = [_I32(_RUSAGE_THREAD), _pointer(builder, args[0])]
        return builder.sext(_call(builder, "getrusage", _I32, arguments, values), _I64)

    return types.int64(types.int64), codegen


@intrinsic
def read_fd(typingctx, fd, address, n_bytes):
    """read(2) of at most ``n_bytes`` to ``address``; the number of bytes, or -1."""

    def codegen(context, builder, signature, args):
        arguments = [_I32, _I64.as_pointer(), _I64]
        values = [builder.trunc(args[0], _I32), _pointer(builder, args[1]), args[2]]
        return _call(builder, "read", _I64, arguments, values)

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic
def pread_start(typingctx, fd, address, n_bytes):
    """pread(2) at offset 0, which makes a /proc file produce its text anew; the number of bytes, or -1."""

    def codegen(context, builder, signature, args):
        arguments = [_I32, _I64.as_pointer(), _I64, _I64]
        values = [builder.trunc(args[0], _I32), _pointer(builder, args[1]), args[2], _I64(0)]
        return _call(builder, "pread", _I64, arguments, values)

    return types.int64(types.int64, types.int64, types.int64), codegen


@intrinsic
def current_cpu(typingctx):
    """The CPU this thread runs on, by sched_getcpu(3): vDSO, no system call."""

    def codegen(context, builder, signature, args):
        return builder.sext(_call(builder, "sched_getcpu", _I32, [], []), _I64)

    return types.int64(), codegen


@intrinsic
def malloc_info(typingctx, address):
    """mallinfo2(3) into the 10 words at ``address``: word 4 hblkhd, word 7 uordblks. x86-64 only."""

    def codegen(context, builder, signature, args):
        _call(builder, "mallinfo2", ir.VoidType(), [_I64.as_pointer()], [_pointer(builder, args[0])])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def allocate(typingctx, n_bytes):
    """Address of ``n_bytes`` from numba's allocator, which is malloc(3) and counts the call; 0 without memory."""

    def codegen(context, builder, signature, args):
        return builder.ptrtoint(context.nrt.allocate(builder, args[0]), _I64)

    return types.int64(types.int64), codegen


@intrinsic
def free(typingctx, address):
    """Give back what :func:`allocate` returned."""

    def codegen(context, builder, signature, args):
        context.nrt.free(builder, builder.inttoptr(args[0], ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def mutex_lock(typingctx, address):
    """pthread_mutex_lock(3) on the mutex at ``address``: sleeps in the kernel while another thread holds it."""

    def codegen(context, builder, signature, args):
        _call(builder, "pthread_mutex_lock", _I32, [_I64.as_pointer()], [_pointer(builder, args[0])])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def mutex_unlock(typingctx, address):
    """pthread_mutex_unlock(3) on the mutex at ``address``."""

    def codegen(context, builder, signature, args):
        _call(builder, "pthread_mutex_unlock", _I32, [_I64.as_pointer()], [_pointer(builder, args[0])])
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@intrinsic
def sleep_ns(typingctx, duration_ns):
    """clock_nanosleep(2) for so long by CLOCK_MONOTONIC; 0 when it was not broken off."""

    def codegen(context, builder, signature, args):
        timespec = cgutils.alloca_once(builder, _I64, size=2)
        builder.store(builder.sdiv(args[0], _I64(1_000_000_000)), timespec)
        builder.store(builder.srem(args[0], _I64(1_000_000_000)), builder.gep(timespec, [_I64(1)]))
        arguments = [_I32, _I32, _I64.as_pointer(), _I64.as_pointer()]
        nowhere = ir.Constant(_I64.as_pointer(), None)
        values = [_I32(_CLOCK_MONOTONIC), _I32(0), timespec, nowhere]
        return builder.sext(_call(builder, "clock_nanosleep", _I32, arguments, values), _I64)

    return types.int64(types.int64), codegen


@intrinsic
def drop_pages(typingctx, address, n_bytes):
    """madvise(2) with MADV_DONTNEED: the next touch of each page is a fault; 0 when it worked."""

    def codegen(context, builder, signature, args):
        arguments = [_I64.as_pointer(), _I64, _I32]
        values = [_pointer(builder, args[0]), args[1], _I32(_MADV_DONTNEED)]
        return builder.sext(_call(builder, "madvise", _I32, arguments, values), _I64)

    return types.int64(types.int64, types.int64), codegen
