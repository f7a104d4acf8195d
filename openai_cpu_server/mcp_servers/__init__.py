"""Connections to MCP servers: started on first use, bounded, and closed with this server.

`server/` opens the configured ones and hands them to the API, which knows them by `contract.mcp`. Only this
package imports `mcp` (extra `mcp`). A server that hangs, dies, floods or sends invalid messages affects only
the calls that wait for it. A child inherits the usual environment and the variables of its table. URLs from
clients are reached only at public addresses.
"""
