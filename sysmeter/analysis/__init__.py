"""Pure functions on a Recording: no root, no bcc, no numba."""
