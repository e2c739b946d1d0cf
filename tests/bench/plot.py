"""Draw build/bench.json: each row's ratio as a share of its limit, to docs/bench.png."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

REPOSITORY = Path(__file__).parents[2]
RESULTS, PICTURE = REPOSITORY / "build" / "bench.json", REPOSITORY / "docs" / "bench.png"
WITHIN, OVER = "#2a7f62", "#c8553d"
INCHES_PER_ROW = 0.17


def main() -> None:
    rows = json.loads(RESULTS.read_text(encoding="utf-8"))
    shares = [row["ratio"] / row["limit"] for row in rows]
    figure, axes = plt.subplots(figsize=(9, 1 + INCHES_PER_ROW * len(rows)), layout="constrained")
    axes.barh(range(len(rows)), shares, color=[OVER if share > 1 else WITHIN for share in shares])
    axes.set_yticks(range(len(rows)), _label(rows), fontsize=6)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("ratio to the peer, as a share of the row's limit (left of the line is within it)", fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    axes.margins(y=0.005)
    axes.invert_yaxis()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110)
    print(f"{len(rows)} rows drawn to {PICTURE}")


def _label(rows: list[dict[str, Any]]) -> list[str]:
    """The rows' names, with the peer's first words where a name is compared with several."""
    counts = Counter(row["name"] for row in rows)
    return [f"{row['name']} / {row['peer'].split(',')[0]}" if counts[row["name"]] > 1 else row["name"] for row in rows]


if __name__ == "__main__":
    main()
