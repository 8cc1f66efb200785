-- Adds units to the members of one sorted set, and keeps those that have most.
-- ARGV: TTL in ms, how many members are kept, and pairs of a member and the units to add.
-- Answers the units of each member after that, and last the least member of a set that is full.
local name, ttl, most = KEYS[1], ARGV[1], tonumber(ARGV[2])
-- Also before there is a set: who may not set a TTL adds nothing.
redis.call('PEXPIRE', name, ttl)
local reply = {}
for i = 3, #ARGV, 2 do
  reply[#reply + 1] = redis.call('ZINCRBY', name, ARGV[i + 1], ARGV[i])
end
redis.call('PEXPIRE', name, ttl)
redis.call('ZREMRANGEBYRANK', name, 0, -most - 1)
reply[#reply + 1] = redis.call('ZRANGE', name, -most, -most, 'WITHSCORES')
return reply
