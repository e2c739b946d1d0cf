"""A process that reads and writes some items of shared memory, as an in-place step must, and does nothing else.

Arguments: the descriptor of the memory, its rows and columns, and how many items of each row. A byte on its standard
input starts it, and one on its standard output says that it is done.
"""

from __future__ import annotations

import mmap
import sys

import numpy as np

# As many as the server works on at once.
BLOCK_SIZE = 8192


def main() -> None:
    descriptor, rows, columns, distinct = map(int, sys.argv[1:])
    memory = mmap.mmap(descriptor, 4 * rows * columns)
    items = np.frombuffer(memory, np.float32)
    rng = np.random.default_rng(0)
    places = [np.sort(rng.choice(columns, distinct, replace=False)) + row * columns for row in range(rows)]
    blocks = np.array_split(np.concatenate(places), -(-rows * distinct // BLOCK_SIZE))
    while sys.stdin.buffer.read(1):
        for block in blocks:
            items[block] = items.take(block, mode="clip")
        sys.stdout.buffer.write(b".")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
