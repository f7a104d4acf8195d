"""Common parts of every room that stores data on disk, in a database or in Redis.

The jobs database and the response cache use `database`, both and the rate limits use `breaker`, and private
files are written with `private_files`. An event loop never waits for a disk; a store that is down is retried
only now and then, and logged once; a written file is complete and private to this user. The room does not
know what is stored, and only `database` imports SQLAlchemy.
"""
