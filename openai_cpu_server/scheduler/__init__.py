"""Decision about what each step computes. Pure: no clock, threads or I/O. Times are arguments, and the cost
of a step is a prediction that learns.

Only the engine's core calls it, in its loop: `step = scheduler.schedule()`, the backend executes the step,
`scheduler.apply(step, result)`. Requests arrive and end between steps (`scheduler.sequences`), and
`scheduler.eta_estimator` estimates waiting times. `EmbedQueue` is the counterpart for models that embed.

Every submitted sequence ends or continues, and none fails because the pool is full. Interactive work never
waits behind batch work, which keeps its share. Output does not depend on the schedule. `Scheduler.check`
verifies ledger, index and sequences; tests call it after every step.
"""
