"""Measure logitd against other ways of doing the same, and write build/bench.json.

Ratios within one run count, not times. A row over its limit is marked; it is no error.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from harness import FULL, QUICK, Row, Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness import Case

# The first part of the rows' names, and the modules whose `cases` measure them.
SUITES = {
    "sampling": ("sampling_step", "sampling_drafts", "sampling_state"),
    "beam": ("beam_step",),
    "transport": ("transport_shared", "transport_tensors", "transport_beams", "transport_streams"),
}
OUTPUT = Path(__file__).parents[2] / "build" / "bench.json"


def main() -> None:
    arguments = parse_arguments()
    settings = Settings(QUICK if arguments.quick else FULL, arguments.device)
    rows: list[Row] = []
    print(format_header())
    for case in find_cases(arguments.only):
        for row in case.measure(settings):
            rows.append(row)
            print(format_row(row), flush=True)
        write(rows, arguments.output)
    over = sum(row.is_over for row in rows)
    print(f"{len(rows)} rows, {over} over their limit; written to {arguments.output}")


def find_cases(only: str) -> Iterator[Case]:
    """The cases whose names contain `only`. Where it starts with a suite's name, no other is even imported."""
    suite = only.partition("/")[0]
    for name in [suite] if suite in SUITES else SUITES:
        for module in SUITES[name]:
            yield from (case for case in import_module(module).cases() if only in case.name)


def write(rows: list[Row], path: Path) -> None:
    """All rows so far; an interrupted run leaves what it has measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="NAME", help="only rows whose name contains this")
    parser.add_argument("--quick", action="store_true", help="fewer repeats: under 40 seconds")
    parser.add_argument("--device", default="cpu", help="where the logits lie (default: %(default)s)")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="default: build/bench.json of the repository")
    return parser.parse_args()


def format_header() -> str:
    return f"{'name':34} {'ours':>9} {'peer':>9}    {'ours/peer':>10} {'limit':>9}  peer"


def format_row(row: Row) -> str:
    mark = "  OVER ITS LIMIT" if row.is_over else ""
    numbers = f"{row.ours:9.3f} {row.theirs:9.3f} {row.unit:3}{_fraction(row.ratio):>10} {_fraction(row.limit):>9}"
    return f"{row.name:34} {numbers}  {row.peer}{mark}"


def _fraction(ratio: float) -> str:
    return f"1/{1 / ratio:.1f}" if ratio < 1 else f"{ratio:.2f}"


if __name__ == "__main__":
    main()
