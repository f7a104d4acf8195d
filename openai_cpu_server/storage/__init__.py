"""What every room needs that keeps something elsewhere: on disk, in a database, in Redis.

The rooms of jobs and of cached answers call `database`, rate limits and both of them `breaker`, and
whoever writes a file of people's words `private_files`.
Promises: an event loop never waits for a disk; a store that is away is asked only now and then, and told
of once; what is written is whole and this user's alone. It knows nothing of what is stored, and only
`database` imports SQLAlchemy.
"""
