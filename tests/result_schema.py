"""The shipped schema, which every result that a test makes must fit."""

import json
from functools import lru_cache

import jsonschema_rs

from loadgen.schema.result import SCHEMA_PATH

_SCHEMA = jsonschema_rs.Draft202012Validator(json.loads(SCHEMA_PATH.read_text()))


@lru_cache(maxsize=8)
def require_schema(result: bytes) -> None:
    """Raise unless it fits. What drives a run asks, and so does the end of the test: the second time costs nothing."""
    _SCHEMA.validate(json.loads(result))
