"""The tables, and the transactions on them. Everything here is synchronous and runs in the database's
threads.

The rest of the room calls it through `DatabaseThreads`. Each method is one transaction, on SQLite or
PostgreSQL, and raises JobsUnavailable while the database cannot be reached.
"""
