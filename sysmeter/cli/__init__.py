"""The command line: a module a command, each thin: parse, call, print."""
