"""sysmeter: where a latency tail comes from, and whether the zeros of a low-latency program are true."""

__version__ = "0.1.0"
