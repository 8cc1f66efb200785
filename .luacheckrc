-- The script runs in the Lua 5.1 of Redis, and in 5.4 elsewhere. It gets its arguments as globals and sets none.
std = "lua51"
read_globals = { "redis", "struct", "KEYS", "ARGV", "unpack", table = { fields = { "unpack" } } }
max_line_length = 140
-- A function that takes as an argument what it would else close over is faster: the name is the same on purpose.
-- And `local a, b = 1, nil` says that b is set later.
ignore = { "431", "311" }
