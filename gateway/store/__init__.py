"""State that outlives a restart: one database, one writer a process, one small module a noun."""
