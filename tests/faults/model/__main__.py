"""Search, and write docs/model.md."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.faults.model.page import page

if __name__ == "__main__":
    text = page()
    Path(__file__).resolve().parents[3].joinpath("docs", "model.md").write_text(text)
    sys.stdout.write(text)
