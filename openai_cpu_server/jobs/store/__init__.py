"""Tables, and transactions on them. A method is one synchronous transaction, on SQLite or PostgreSQL. It
raises JobsUnavailable while the database is away. The rest of the package calls it in threads, through
`DatabaseThreads`."""
