"""MCP servers: started when they are wanted first, asked within bounds, ended with this server.

`server/` opens those of the configuration and hands them to the API, which knows them by `contract.mcp`. Only
here is the package `mcp` imported (the extra `mcp`). Promises: a server that hangs, dies, floods or answers
nonsense costs the calls that wait for it, and nothing else; a child gets of the environment what all children
get and what its table names; what clients name by a URL is asked at public addresses alone.
"""
