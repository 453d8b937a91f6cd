"""Makes each function of amdsmi's interface fail in turn: `python -m tests.telemetry.amdsmi_stub.walk`.

One line of JSON for each function and way to fail: whether the backend opened, how many GPUs it sampled, and which of
their fields were lost without a reason. In a process of its own, because the package loads its library only once.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import amdsmi

from loadgen.errors import TelemetryError
from loadgen.schema.samples import GpuSample
from loadgen.telemetry.amd.amdsmi import open_amdsmi
from loadgen.telemetry.amd.amdsmi_library import Library

FAILURES: dict[str, Callable[[], Exception]] = {
    "status": lambda: amdsmi.AmdSmiLibraryException(2),
    "AttributeError": lambda: AttributeError("undefined symbol"),
    "KeyError": lambda: KeyError("a new value"),
    "OSError": lambda: OSError("broken"),
}


def fields(samples: tuple[GpuSample, ...]) -> list[set[str]]:
    """The fields that are known, by GPU."""
    names = [name for name in GpuSample.__struct_fields__ if name != "missing"]
    return [{name for name in names if getattr(sample, name) is not None} for sample in samples]


def measured() -> tuple[GpuSample, ...]:
    backend = open_amdsmi()
    backend.sample(True, True)
    return backend.sample(True, True)


def main() -> None:
    used: dict[str, None] = {}
    ask = Library.ask

    def noting(self: Library, name: str, *arguments: object) -> Any:
        used[name] = None
        return ask(self, name, *arguments)

    Library.ask = noting  # type: ignore[method-assign]  # to learn which functions are used
    whole = fields(measured())
    Library.ask = ask  # type: ignore[method-assign]
    for name in used:
        original = getattr(amdsmi, name)
        for failure, error in FAILURES.items():

            def fail(*_: object, error: Callable[[], Exception] = error) -> None:
                raise error()

            setattr(amdsmi, name, fail)
            try:
                samples = measured()
            except TelemetryError as refused:
                found: dict[str, Any] = {"refused": str(refused)}
            else:
                known = fields(samples)
                lost = [full - now - set(each.missing) for full, now, each in zip(whole, known, samples, strict=False)]
                found = {"gpus": len(samples), "lost": sorted(set().union(*lost))}
            sys.stdout.write(json.dumps({"function": name, "failure": failure, **found}) + "\n")
        setattr(amdsmi, name, original)


if __name__ == "__main__":
    main()
