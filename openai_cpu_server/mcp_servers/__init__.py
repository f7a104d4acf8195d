"""Connections to MCP servers: started on first use, bounded, and closed with this server.

`server/` hands them to the API, which knows them by `contract.mcp`. Only this package imports `mcp` (extra
`mcp`). A broken server affects only the calls that wait for it. A child inherits the usual environment and
its table's variables. Clients' URLs are reached only at public addresses.
"""
