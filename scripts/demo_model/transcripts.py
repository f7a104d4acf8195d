#!/usr/bin/env python3
"""Write ten fixed conversations with a model as markdown, unedited.

scripts/demo_model/transcripts.py model_assets/demo.gguf --output transcripts.md
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_model.evaluation.conversations import CONVERSATIONS
from demo_model.evaluation.engine import Engine
from demo_model.evaluation.transcript import transcript
from openai_cpu_server.errors import StartupError


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--output", type=Path, required=True, help="a markdown file")
    parser.add_argument("--threads", type=int, help="default: one per core")
    options = parser.parse_args()
    try:
        with Engine(options.model, threads=options.threads, max_seqs=1) as engine:
            written = [transcript(engine, conversation) for conversation in CONVERSATIONS]
    except StartupError as error:
        sys.exit(str(error))
    options.output.write_text("\n".join(written), encoding="utf-8")


if __name__ == "__main__":
    main()
