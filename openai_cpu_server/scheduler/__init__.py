"""Decision about what each step computes. Pure: no clock, threads or I/O.

The engine's core calls `step = scheduler.schedule()`, the backend executes the step, and
`scheduler.apply(step, result)` follows. Requests arrive and end between steps (`scheduler.sequences`).
`EmbedQueue` is the counterpart for models that embed.

Every submitted sequence ends or continues, and none fails because the pool is full. Interactive work never
waits behind batch work, which keeps its share. Output does not depend on the schedule. Tests call
`Scheduler.check` after every step.
"""
