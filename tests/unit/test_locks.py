"""The lock files."""

from __future__ import annotations

from tests.support.checkouts import REPOSITORY


def test_the_lock_files_name_no_place() -> None:
    """No index, host or folder: the locks serve every machine. And each version has its hashes."""
    for name in ("requirements.lock", "requirements-plot.lock", "requirements-dev.lock"):
        text = (REPOSITORY / name).read_text()
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        assert not [line for line in lines if "://" in line or line.startswith("-")]
        entries = "\n".join(lines).replace("\\\n", " ").splitlines()
        assert entries
        for entry in entries:
            assert "==" in entry, entry
            assert "--hash=sha256:" in entry, entry
