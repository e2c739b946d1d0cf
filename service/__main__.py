"""``python -m logitd.service``, the same as the command ``logitd``."""

from __future__ import annotations

from logitd.service.cli import main

raise SystemExit(main())
