"""Draw build/bench.json: each row's ratio as a share of its limit, to docs/bench.png."""

from __future__ import annotations

import json
from pathlib import Path

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
    axes.set_yticks(range(len(rows)), [row["name"] for row in rows], fontsize=6)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_xlabel("ratio to the peer, as a share of the row's limit (left of the line is within it)", fontsize=8)
    axes.tick_params(axis="x", labelsize=7)
    axes.margins(y=0.005)
    axes.invert_yaxis()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110)
    print(f"{len(rows)} rows drawn to {PICTURE}")


if __name__ == "__main__":
    main()
