"""Decision about what each step computes. Pure: no clock, threads or I/O. The core alternates
`scheduler.schedule()` and `scheduler.apply(step, result)`; requests arrive and end between steps
(`scheduler.sequences`). Every sequence ends or continues, none fails because the pool is full, and output
does not depend on the schedule. Interactive work never waits behind batch work, which keeps its share."""
