from pathlib import Path


def executable(path: Path, text: str) -> Path:
    """Write a file that can be run, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path
