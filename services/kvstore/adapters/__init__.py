"""Where the store touches the outside: child processes, LMDB, files."""
