"""Embeds with sentence-transformers on PyTorch: reads texts as one line of JSON, then embeds them once for
each further line and prints the seconds that it took. It runs in an interpreter that has these packages.

    python sentence_transformers_loop.py FOLDER THREADS
"""

from __future__ import annotations

import json
import sys
import time

import torch
from sentence_transformers import SentenceTransformer

_BATCHES = (32, 128)
"""Texts of a step: the default, and more."""


def main() -> None:
    folder, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    model = SentenceTransformer(folder, device="cpu")
    texts = json.loads(sys.stdin.readline())
    for _ in sys.stdin:
        times = []
        for batch in _BATCHES:
            started = time.perf_counter()
            model.encode(texts, batch_size=batch, normalize_embeddings=True, show_progress_bar=False)
            times.append(time.perf_counter() - started)
        print(min(times), flush=True)


if __name__ == "__main__":
    main()
