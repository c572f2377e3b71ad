"""How causes are injected into a running workload: the words of shared memory by which one asks for them.

A workload that takes commands names an array of int64 words in its "ready" event (``commands``, see
:mod:`sysmeter.workload`). Who injects writes the kind and the argument of a command and then, last, its number into
``ASKED``. The target thread looks there once a turn; it does what it is asked, writes what it did and when, and then,
last, the number into ``DONE``. There is one command at a time. A workload whose threads cannot look all the time names
a pipe too (``wake_fd``): who asks writes the byte ``!`` to it.
"""

from __future__ import annotations

# Line 0 (of 128 bytes, so that neither side's line is the other's neighbour): written by who injects.
ASKED, KIND, ARGUMENT = range(3)
# Line 1: written by the target thread. Begin and end are its own clock reads just before and just after what it did.
DONE, T_BEGIN, T_END, CPU, CPU_TIME, COUNT = range(16, 22)
# Line 2: written by the workload before or at the start of its loop. Instants are 0 before they are known.
T_START, MUTEX_AT, BUFFER_AT, BUFFER_BYTES, HAS_MEMBARRIER, TID = range(32, 38)
# Line 3: a process-shared pthread_mutex_t, which the target locks and unlocks when it is asked to.
MUTEX = 48
N_HEADER_WORDS = 64

# Kinds of commands, and their arguments.
DO_SLEEP = 1  # ns
DO_LOCK = 2  # none: lock the mutex and unlock it
DO_FAULT = 3  # pages of the buffer that are given back and then touched
DO_SPIN = 4  # ns
DO_TELL = 5  # none: CPU becomes the one the thread runs on, CPU_TIME the ns that it has run so far
DO_COLLECT = 6  # generation; CPU_TIME becomes the ns of CPU time that it took, COUNT 0 where there was none
