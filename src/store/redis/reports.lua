-- Adds units to the members of one sorted set, and keeps those that have most.
-- ARGV: TTL in ms, how many members are kept, and pairs of a member and the units to add.
local name, ttl, most = KEYS[1], ARGV[1], tonumber(ARGV[2])
-- Also before there is a set: who may not set a TTL adds nothing.
redis.call('PEXPIRE', name, ttl)
for i = 3, #ARGV, 2 do
  redis.call('ZINCRBY', name, ARGV[i + 1], ARGV[i])
end
redis.call('PEXPIRE', name, ttl)
redis.call('ZREMRANGEBYRANK', name, 0, -most - 1)
