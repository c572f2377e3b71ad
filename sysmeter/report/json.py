"""A result as JSON: one object, ASCII-safe, without NaN or infinity."""

from __future__ import annotations

import json
from typing import Any


def dump(result: dict[str, Any]) -> str:
    """The result as one JSON object over several lines, keys in the result's order.

    Raises:
        ValueError: a value has no place in JSON, such as NaN; a result never holds one.
    """
    return json.dumps(result, indent=1, allow_nan=False)
