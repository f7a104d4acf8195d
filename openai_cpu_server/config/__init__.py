"""All options, each once, with its default and its meaning.

The commands read them at their start, from the command line, the environment, files of secrets and a TOML
file. `server` hands each part what it needs of them, as a narrow frozen record of that part; nobody else sees
`Settings`. A value that is wrong is refused here, in one line that names the option and where it was said.
`--help` and the manual are made from these classes. Defaults of what an engine knows by the same name stand
in the contract's records.
"""
