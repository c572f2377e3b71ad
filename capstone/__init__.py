"""The measured program of sysmeter: message file, generator, pinned two-thread loop; one file per swap.

PyPI has an unrelated ``capstone`` (a disassembler). Whoever imports this name and must be sure which one
answered checks for :data:`IS_SYSMETER_CAPSTONE`.
"""

from __future__ import annotations

IS_SYSMETER_CAPSTONE = True
