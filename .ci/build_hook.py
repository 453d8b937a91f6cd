"""Records in wheel and sdist the commit that they were built from (see loadgen/build.py)."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    """Adds the note to the archive only, and writes nothing into the source tree."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        sys.path.insert(0, self.root)
        from loadgen.build import NOTE, from_git

        build = from_git(Path(self.root))
        if version == "editable" or build is None:  # a checkout is read live; an sdist has its note already
            return
        self._folder = tempfile.TemporaryDirectory()
        note = Path(self._folder.name, NOTE)
        note.write_text(json.dumps(build._asdict()) + "\n", encoding="utf-8")
        build_data["force_include"][str(note)] = f"loadgen/{NOTE}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "_folder"):
            self._folder.cleanup()
