"""Tables, and transactions on them. All code here is synchronous and runs in the database's threads; the
rest of the package calls it through `DatabaseThreads`. A method is one transaction, on SQLite or
PostgreSQL, and raises JobsUnavailable while the database cannot be reached."""
