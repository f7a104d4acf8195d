"""What every room needs that keeps something elsewhere: on disk, in a database, in Redis.

The rooms of jobs and of cached answers call it for their databases, the rate limits for Redis, and whoever
writes a file of people's words for a file that nobody else can read. It promises that an event loop never
waits for a disk, that a store that is away is asked only now and then and told of once, and that what is
written is whole and private. It knows nothing of what is stored.
"""
