"""Common parts of the rooms that store data on disk, in a database or in Redis. An event loop never waits for
a disk. A store that is down is retried only now and then, and logged once. A written file is complete and
private."""
