"""What privacy costs and what it prevents.

Run with ``python -m benchmarks.privacy`` (``--quick``: fewer repeats). Writes figures to ``--out``, and two pictures
beside it. Where MovieLens-1M is absent (benchmarks/data.py) only the attacks are run.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.data import ROOT, is_there
from benchmarks.privacy.accuracy import at_the_papers_setting, by_epsilon
from benchmarks.privacy.attacks import dictionary, kept_labels, label_inference, membership
from benchmarks.privacy.pictures import draw_epsilon, draw_rounds

OUT = ROOT / "benchmarks" / "results" / "privacy.json"


def main() -> None:
    """Measure everything and write the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--out", type=Path, default=OUT, help="the file for figures; pictures go beside it")
    asked = parser.parse_args()
    repeats = 2 if asked.quick else 5
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        result["membership inference"] = membership(folder / "members", 3 if asked.quick else 20)
        result["label inference"] = label_inference(folder / "labels")
        result["dictionary of digests"] = dictionary()
        result["labels that stay true"] = kept_labels()
        print(json.dumps(result, indent=2), flush=True)
        if is_there("movielens-1m"):
            result["by epsilon"] = by_epsilon(folder, 3 * repeats)
            draw_epsilon(result["by epsilon"], asked.out.with_name("privacy-epsilon.png"))
            result["paper"] = at_the_papers_setting(folder, repeats)
            result["paper"]["constant"] = result["by epsilon"]["constant"]
            draw_rounds(result["paper"], asked.out.with_name("privacy-rounds.png"))
    asked.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
