"""Decides what each step computes. Pure: no clock, no threads, no I/O; times are arguments, and what a step
costs is a prediction that learns.

Called by the engine's core alone, in its loop: `step = scheduler.schedule()`, the backend executes it,
`scheduler.apply(step, result)`. Requests come and go between steps (`scheduler.sequences`); those who wait,
and who chooses between engines, are told what to expect (`scheduler.expectations`). `EmbedQueue` is its
smaller sister where the model embeds.

It promises: every sequence that is submitted ends or goes on; none fails because the pool is full;
interactive work is never behind batch work, which keeps its share; output does not depend on the schedule.
Ledger, index and sequences check themselves (`Scheduler.check`), which tests ask for after every step.
"""
