"""A certificate as one page for whoever receives the box: verdict, intervals and bounds, and the evidence by link."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from urllib.parse import quote

import loadgen
from loadgen.errors import ResultError, reported_as
from loadgen.places import read_whole, write_whole
from loadgen.record.acceptance import title
from loadgen.report.certificate import certificate_sections, headline, place_of
from loadgen.report.html.page import opening, page, rendered, section
from loadgen.report.tabular import plain
from loadgen.schema.certificate import Certificate, Criterion
from loadgen.store.acceptance import CERTIFICATE, write_certificate_json

PAGE = "certificate.html"
_WIDTH, _HEIGHT = 320, 22
_COLOURS = {"pass": "accent", "fail": "bad", "inconclusive": "muted"}


def write_certificate(folder: Path) -> Certificate:
    """Make the certificate of a folder: `certificate.json` and the page next to it; raises `ResultError`."""
    certificate = write_certificate_json(folder)
    path = folder / PAGE
    with reported_as(f"{path}: cannot be written"):
        write_whole(path, certificate_page(certificate).encode())
    return certificate


def verify_page(folder: Path, certificate: Certificate) -> list[str]:
    """How the page differs from that of the certificate next to it; only the vramp that made it makes the same."""
    path = folder / PAGE
    try:
        page = read_whole(path)
    except FileNotFoundError:
        return [f"{PAGE}: is missing"]
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror}") from error
    if certificate.vramp_version != loadgen.__version__ or page == certificate_page(certificate).encode():
        return []
    return [f"{PAGE}: is not the page of {CERTIFICATE}"]


def certificate_page(certificate: Certificate) -> str:
    verdict, *others = certificate_sections(certificate)
    word, of = headline(certificate).split(": ", 1)
    about_intervals = (
        "The bar is the interval in which the true figure lies, the dot what was measured. The line is the last good "
        "value, the bound with its margin; what is good is to its left. Each row has a scale of its own."
    )
    about_files = (
        "Files in the folder of this page, with their SHA-256; `vramp accept --verify FOLDER` checks them all."
    )
    rows = [
        f"<tr><td class='text'><a href='{quote(name)}'>{plain(name)}</a></td><td class='text'>{plain(digest)}</td></tr>"
        for name, digest in certificate.files.items()
    ]
    parts = [
        opening("vramp accept", word, of, kind="bad" if certificate.verdict == "fail" else ""),
        rendered(verdict),
        section("Intervals and bounds", _table(filter(None, map(_row, certificate.criteria))), note=about_intervals),
        *map(rendered, others),
        section("Evidence", _table(rows), note=about_files),
    ]
    return page(headline(certificate), parts, {})


def _table(rows: Iterable[str]) -> str:
    body = "\n".join(rows)
    return f"<table><tbody>\n{body}\n</tbody></table>" if body else ""


def _row(criterion: Criterion) -> str:
    place = place_of(criterion)
    if place is None:
        return ""
    low, dot, high, bound = (_WIDTH / 2 * (1 + 0.95 * value) for value in place)
    colour = f"var(--{_COLOURS[criterion.outcome]})"
    middle, box = _HEIGHT / 2, f"x='{low:.1f}' width='{max(1.0, high - low):.1f}' y='{_HEIGHT / 2 - 4:g}' height='8'"
    drawing = (
        f"<svg width='{_WIDTH}' height='{_HEIGHT}' role='img' aria-label='{criterion.outcome}'>"
        f"<rect {box} fill='{colour}' opacity='.35'/><circle cx='{dot:.1f}' cy='{middle:g}' r='3.5' fill='{colour}'/>"
        f"{_line(bound, 'muted', dashes='2 2')}{_line(_WIDTH / 2, 'ink')}</svg>"
    )
    words = [title(criterion.demand), criterion.outcome]
    return f"<tr><td class='text'>{plain(words[0])}</td><td>{drawing}</td><td class='text'>{plain(words[1])}</td></tr>"


def _line(x: float, colour: str, dashes: str = "none") -> str:
    place = f"x1='{x:.1f}' x2='{x:.1f}' y1='1' y2='{_HEIGHT - 1}'"
    return f"<line {place} stroke='var(--{colour})' stroke-dasharray='{dashes}'/>"
