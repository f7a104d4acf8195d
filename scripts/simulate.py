#!/usr/bin/env python3
"""Many replicas in virtual time: the real scheduler, router and autoscaler, with measured step times. Reports
TTFT, hit rates and loads, and the cost of a choice.

    .venv/bin/python scripts/simulate.py [--part goal|sizes|faults|day ...]
    .venv/bin/python scripts/simulate.py --trace FILE.jsonl --replicas 4
    .venv/bin/python scripts/simulate.py --write-trace FILE.jsonl --replicas 4
    .venv/bin/python scripts/simulate.py --against http://127.0.0.1:8000 --curve ~/.cache/.../curve-*.json

goal    four replicas against one that is as fast as all together: hit rate, and how even the load is
sizes   1, 10, 100 and 1,000 replicas, each with its share of a mixed workload
faults  one of four replicas dies, or is drained
day     the autoscaler through a day's curve

`--against` sends the first turns of a trace to a real server, and simulates one replica with them too. A
trace has a turn in each line (docs/simulation.md):
{"at_s": 1.5, "session": "a", "shared": [["system-1", 800]], "tokens": 40, "output": 120, "batch": false,
"key": ""}
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simulation import reality, stories
from simulation.figures import table
from simulation.fleet import Plan
from simulation.machines import CURVES, read_curve
from simulation.replica import Machine
from simulation.turns import read_trace, sessions, write_trace
from simulation.workloads import trace

_PARTS = ("goal", "sizes", "faults", "day")


def main() -> None:
    asked = _asked()
    if asked.write_trace:
        mix = stories.scaled(stories.PER_REPLICA, asked.replicas[0])
        write_trace(asked.write_trace, trace(mix, asked.seconds, asked.seed))
        return
    if asked.against:
        _compare_with(asked)
        return
    if asked.trace:
        plan = Plan(Machine(read_curve(asked.curve)), asked.replicas[0], seed=asked.seed)
        print(table([*stories.compared(plan, read_trace(asked.trace))]))
        return
    for part in asked.part or _PARTS:
        began = time.process_time()
        print(f"\n## {part}\n")
        _TELLERS[part](asked)
        print(f"\n({time.process_time() - began:.0f} s of one core)", flush=True)


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--part", nargs="+", choices=_PARTS, help="default: all")
    parser.add_argument("--replicas", nargs="+", type=int, default=[1, 10, 100, 1000], metavar="N")
    parser.add_argument("--seconds", type=float, default=300.0, help="virtual; sessions begin so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--curve", default="1b", help=f"what steps cost: {', '.join(CURVES)}, or a server's curve-*.json"
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="turns in JSON lines, by every routing")
    parser.add_argument("--write-trace", type=Path, metavar="FILE", help="what would be simulated")
    parser.add_argument("--against", metavar="URL", help="a server on this machine, to compare with")
    parser.add_argument("--model", default="smollm2", help="its model's name")
    return parser.parse_args()


def _goal(asked: argparse.Namespace) -> None:
    one, rows = stories.goal(read_curve(asked.curve), asked.seconds, asked.seed)
    print(f"One replica, as fast as all: hit rate {one.hit_rate:.3f}, TTFT p95 {one.ttft_p95_s:.2f} s")
    print(f"\n{table(rows)}")
    share, imbalance = rows[-1].hit_rate / one.hit_rate, rows[-1].imbalance
    print(f"\nOurs: hit rate {share:.3f} of one replica's (goal: 0.95), imbalance {imbalance:.2f} (1.25)")


def _sizes(asked: argparse.Namespace) -> None:
    rows = stories.sizes(read_curve(asked.curve), asked.replicas, asked.seconds, asked.seed)
    for number, row in enumerate(rows):
        lines = table([row]).splitlines()
        if number == 0:
            print("| replicas " + lines[0] + "\n|---:" + lines[1])
        print(f"| {row.num_replicas} {lines[2]}", flush=True)


def _faults(asked: argparse.Namespace) -> None:
    print("| story | TTFT p50 s | p95 s | moved | their longest pause s | answers not whole |")
    print("|---|---:|---:|---:|---:|---:|")
    for one in stories.faults(read_curve(asked.curve), asked.seconds, asked.seed):
        told = one.figures
        print(
            f"| {one.name} | {told.ttft_p50_s:.2f} | {told.ttft_p95_s:.2f} | {told.moved} | "
            f"{one.longest_pause_s:.2f} | {one.lost} |"
        )


def _day(asked: argparse.Namespace) -> None:
    done = stories.day(read_curve(asked.curve), 24 * asked.seconds, asked.seed)
    largest = max(serving for _, serving, _ in done.sizes)
    print(f"At most {largest} replicas served.\n")
    print("| replicas | replica hours | TTFT p50 s | p95 s | requests |\n|---|---:|---:|---:|---:|")
    for name, row in (("autoscaled", done.figures), (f"always {largest}", done.fixed)):
        print(
            f"| {name} | {row.replica_hours:.1f} | {row.ttft_p50_s:.2f} | {row.ttft_p95_s:.2f} | "
            f"{row.requests} |"
        )


def _compare_with(asked: argparse.Namespace) -> None:
    curve, replicas = read_curve(asked.curve), asked.replicas[0]
    turns = read_trace(asked.trace) if asked.trace else None
    if turns is None:
        turns = trace(stories.scaled(stories.PER_REPLICA, replicas), asked.seconds, asked.seed)
    firsts = [ones[0] for ones in sessions(turns).values()]
    plan = Plan(Machine(curve), 1, seed=asked.seed, news_delay_s=0.0)
    port = urlsplit(asked.against).port or 80
    told = (
        asyncio.run(reality.real(port, asked.model, firsts, asked.seed)),
        reality.simulated(plan, firsts),
    )
    print(f"{len(firsts)} requests\n\n| | real | simulated | ratio |\n|---|---:|---:|---:|")
    for name, measured, predicted in zip(reality.Summary._fields, *told, strict=True):
        print(f"| {name} | {measured:.3f} | {predicted:.3f} | {predicted / max(measured, 1e-9):.2f} |")


_TELLERS = {"goal": _goal, "sizes": _sizes, "faults": _faults, "day": _day}

if __name__ == "__main__":
    main()
