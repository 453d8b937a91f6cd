"""Writes the generated part of the stub: the wrapper's structures as tables of fields, and the functions it lacks.

Run as a program in a process of its own (`python layout.py stub.c`), because the wrapper is imported here with a
library that is not there. Offsets come from the wrapper's own ctypes structures, so the stub cannot disagree with it.
"""

import ctypes
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ANSWERS = {
    "amdsmi_get_gpu_vram_usage": "vram_usage",
    "amdsmi_get_gpu_enumeration_info": "enumeration_info",
    "amdsmi_get_gpu_asic_info": "asic_info",
    "amdsmi_get_gpu_kfd_info": "kfd_info",
    "amdsmi_get_gpu_board_info": "board_info",
    "amdsmi_get_gpu_driver_info": "driver_info",
    "amdsmi_get_gpu_total_ecc_count": "error_count",
    "amdsmi_get_pcie_info": "pcie_info",
    "amdsmi_get_gpu_xgmi_link_status": "xgmi_link_status",
}
ANSWERS_OF = {"amdsmi_get_power_cap_info": "power_cap_info", "amdsmi_get_clock_info": "clk_info"}
FILLED_BY_HAND = ("gpu_metrics", "proc_info")


class _AnyFunction:
    """What a symbol looks like to the wrapper while it binds: something with attributes to set."""


class _AnyLibrary:
    def __getattr__(self, name: str) -> _AnyFunction:
        return _AnyFunction()


def import_wrapper() -> ModuleType:
    ctypes.CDLL = lambda *_, **__: _AnyLibrary()  # type: ignore[assignment,misc]
    return importlib.import_module("amdsmi.amdsmi_wrapper")


def fields(structure: Any, prefix: str = "", offset: int = 0) -> Iterator[str]:
    """The initialisers of a table: name, offset, size of one, count, whether it is text."""
    for name, kind, *_ in structure._fields_:
        place = offset + getattr(structure, name).offset
        if issubclass(kind, ctypes.Structure):
            yield from fields(kind, f"{prefix}{name}.", place)
            continue
        one, count = (kind._type_, kind._length_) if issubclass(kind, ctypes.Array) else (kind, 1)
        if issubclass(one, ctypes.Structure):
            for number in range(count):
                yield from fields(one, f"{prefix}{name}.{number}.", place + number * ctypes.sizeof(one))
        elif one is ctypes.c_char:
            yield f'{{"{prefix}{name}", {place}, {count}, 1, 1}}'
        elif not issubclass(one, ctypes.Union):
            yield f'{{"{prefix}{name}", {place}, {ctypes.sizeof(one)}, {count}, 0}}'


def table(wrapper: ModuleType, structure: str) -> str:
    layout = getattr(wrapper, f"amdsmi_{structure}_t")
    rows = ",\n    ".join(fields(layout))
    size = f"enum {{ {structure}_size = {ctypes.sizeof(layout)} }};"
    return f"{size}\nstatic const struct field {structure}[] = {{\n    {rows}\n}};"


def main(source: Path) -> None:
    wrapper = import_wrapper()
    structures = [*ANSWERS.values(), *ANSWERS_OF.values(), *FILLED_BY_HAND]
    lines = [table(wrapper, structure) for structure in structures]
    for macro, functions in (("ANSWER", ANSWERS), ("ANSWER_OF", ANSWERS_OF)):
        lines += [f'{macro}({name}, "{s}", {s}, {s}_size)' for name, s in functions.items()]
    bound = set(re.findall(r"_libraries\['libamd_smi\.so'\]\.(\w+)", Path(str(wrapper.__file__)).read_text()))
    by_hand = set(re.findall(r"^(?:status|void) (amdsmi_\w+)\(", source.read_text(), re.MULTILINE))
    lines += [f"REFUSE({name})" for name in sorted(bound - by_hand - ANSWERS.keys() - ANSWERS_OF.keys())]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
