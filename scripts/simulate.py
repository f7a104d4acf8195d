#!/usr/bin/env python3
"""Many replicas in virtual time: the real scheduler, router and autoscaler, with measured step times. Reports
TTFT, hit rates and loads, and the cost of a choice.

    .venv/bin/python scripts/simulate.py [--part goal|sizes|faults|day ...]
    .venv/bin/python scripts/simulate.py --trace FILE.jsonl --replicas 4
    .venv/bin/python scripts/simulate.py --write-trace FILE.jsonl --replicas 4

goal    four replicas against one that is as fast as all together: hit rate, and balance of the load
sizes   1, 10, 100 and 1,000 replicas, each with its share of a mixed workload
faults  one of four replicas dies, or is drained
day     the autoscaler during a day's load

Each line of a trace is a turn (docs/simulation.md):
{"at_s": 1.5, "session": "a", "shared": [["system-1", 800]], "tokens": 40, "output": 120, "batch": false,
"key": ""}
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simulation import stories
from simulation.fleet import Machine, Plan
from simulation.turns import read_trace, trace, write_trace

_PARTS = ("goal", "sizes", "faults", "day")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=_PARTS, help="default: all")
    parser.add_argument("--replicas", nargs="+", type=int, default=[1, 10, 100, 1000], metavar="N")
    parser.add_argument("--seconds", type=float, default=300.0, help="virtual; sessions begin so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--curve",
        default="1b",
        help=f"cost of steps: {', '.join(stories.CURVES)}, or a server's curve-*.json",
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="turns in JSON lines, by every routing")
    parser.add_argument("--write-trace", type=Path, metavar="FILE", help="what would be simulated")
    options = parser.parse_args()
    curve, seconds, seed = stories.read_curve(options.curve), options.seconds, options.seed
    if options.write_trace:
        mix = stories.scaled(stories.PER_REPLICA, options.replicas[0])
        write_trace(options.write_trace, trace(mix, seconds, seed))
        return
    if options.trace:
        plan = Plan(Machine(curve), options.replicas[0], seed=seed)
        print(*stories.table(stories.compared(plan, read_trace(options.trace))), sep="\n")
        return
    for part in options.part or _PARTS:
        began = time.process_time()
        print(f"\n## {part}\n")
        if part == "sizes":
            lines = stories.table(stories.sizes(curve, options.replicas, seconds, seed))
        else:
            lines = {"goal": stories.goal, "faults": stories.faults, "day": stories.day}[part](
                curve, seconds, seed
            )
        for line in lines:
            print(line, flush=True)
        print(f"\n({time.process_time() - began:.0f} s of one core)", flush=True)


if __name__ == "__main__":
    main()
