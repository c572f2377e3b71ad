"""``sysmeter selftest``: known causes are injected into a running workload, and the diagnosis must name them.

``plan`` says what is injected and when, ``injectors`` inject and keep their own records of it, ``driver`` carries a
plan out beside a run's window, ``runner`` makes the runs. How the records are judged is in analysis/selftest.py.
"""
