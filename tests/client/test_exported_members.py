from __future__ import annotations

import subprocess
import sys

import logitd.client


def test_all_lists_the_public_names_in_order():
    public = [name for name in vars(logitd.client) if not name.startswith("_")]
    modules = {"annotations", "demo"}
    assert logitd.client.__all__ == sorted(set(public) - modules)


def test_every_public_name_is_documented():
    undocumented = [name for name in logitd.client.__all__ if not getattr(logitd.client, name).__doc__]
    assert undocumented == []


def test_the_client_needs_no_torch_and_no_other_part():
    code = "import sys, logitd.client; print([m for m in sys.modules if m.split('.')[0] == 'torch' or m in BAD])"
    bad = "BAD = ('logitd.service', 'logitd.sampling', 'hypothesis', 'transformers');"
    found = subprocess.run([sys.executable, "-c", bad + code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
