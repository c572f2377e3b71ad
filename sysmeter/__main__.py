"""``python -m sysmeter``."""

from sysmeter.cli.main import entry

if __name__ == "__main__":
    entry()
