"""Entry point of the `aiokvoffload` command: says what to install where the `cli` extra is missing."""

import sys

_missing: str | None = None
try:
    from aiokvoffload.cli.app import app, own_process
except ModuleNotFoundError as error:
    _missing = (error.name or "").partition(".")[0]
    if _missing not in {"rich", "typer"}:
        raise


def main() -> int:
    """Run the command; returns the exit status."""
    if _missing is not None:
        print(f"aiokvoffload: {_missing} is missing: pip install 'aiokvoffload[cli]'", file=sys.stderr)
        return 2
    own_process()
    app()
    return 0


if __name__ == "__main__":
    sys.exit(main())
