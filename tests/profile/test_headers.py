"""`[load.headers]`: names that HTTP allows, none that vramp sets itself, and secrets that are masked by their names."""

import pytest

from loadgen.errors import ProfileError
from loadgen.masking import masked
from loadgen.profile.document import build_profile
from tests.engines import NOBODY


def headers(**table: object) -> dict[str, object]:
    return {"server": {"engine": "attach", "url": NOBODY}, "load": {"headers": table}}


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"session": "X Session"}, "cannot be the name of a header"),
        ({"static": {"Host": "a"}}, "is set by vramp"),
        ({"static": {"X-A": "a\r\nX-B: b"}}, "printable ASCII"),
        ({"static": {"x-session-id": "a"}, "session": "X-Session-ID"}, "x-session-id is given twice"),
        ({"session": "Authorization"}, "is for a key"),
    ],
)
def test_headers_that_cannot_be_sent_are_refused(table: dict[str, object], why: str) -> None:
    with pytest.raises(ProfileError, match=why):
        build_profile(headers(**table), where="test")


def test_secret_headers_are_masked() -> None:
    static = {"X-Api-Key": "abcdefgh-secret", "X-Tenant": "bench"}
    shown = masked(build_profile(headers(static=static), where="test").model_dump())
    assert shown["load"]["headers"]["static"] == {"X-Api-Key": "***", "X-Tenant": "bench"}
