"""What the tests measure, printed and kept in `build/cluster.txt`."""

from __future__ import annotations

from tests.cluster.machines import ROOT

FIGURES = ROOT / "build" / "cluster.txt"


def tell(text: str) -> None:
    print(text)
    FIGURES.parent.mkdir(exist_ok=True)
    with FIGURES.open("a") as file:
        file.write(text + "\n")
