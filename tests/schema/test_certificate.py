"""The certificate's document."""

from loadgen.schema.certificate import CERTIFICATE_SCHEMA, CERTIFICATE_SCHEMA_PATH, Certificate
from loadgen.schema.result import json_schema


def test_the_shipped_schema_is_that_of_the_code() -> None:
    assert CERTIFICATE_SCHEMA_PATH.read_text() == json_schema(Certificate, CERTIFICATE_SCHEMA), "run `make schema`"
