"""Record what a release answers: `python tests/compat/record.py FOLDER`, with the Python that the release is in.

Both sides of the conversation are that release then. The folder is the release's in tests/releases.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from compat.conversation import FLAGS, converse

from helpers.faults import FaultyServer


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        memory_dir = Path(folder) / "memory"
        memory_dir.mkdir()
        with FaultyServer(Path(folder), *FLAGS, "--shared-memory-dir", str(memory_dir)) as server:
            said = converse(sys.executable, server, memory_dir, "sync")
    walks = [f"{json.dumps(name)}: {json.dumps(answer)}" for name, answer in said["answers"].items()]
    text = ",\n".join(walks)
    (Path(sys.argv[1]) / "answers.json").write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
