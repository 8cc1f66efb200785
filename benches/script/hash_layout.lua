-- The hash layout of the multi-rule article, written plainly: one field for each sub-bucket, one for the sum, one for the
-- oldest sub-bucket. It is here to be measured against.
--
-- KEYS[1]  the key       ARGV[1]  the cost      ARGV[2…]  limit, window and precision of each rule, in ms
local key, cost = KEYS[1], tonumber(ARGV[1])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local rules, longest = {}, 0

for i = 2, #ARGV, 3 do
  local limit, window, precision = tonumber(ARGV[i]), tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  local name = window .. ':' .. precision .. ':'
  local block = math.floor(now / precision)
  local rule = { sum = name, oldest = name .. 'o', block = name .. block, first = block - math.ceil(window / precision) }
  local oldest = tonumber(redis.call('HGET', key, rule.oldest)) or rule.first
  local stale, gone = {}, 0
  for past = oldest, math.min(rule.first, oldest + math.ceil(window / precision) + 1) - 1 do
    local count = redis.call('HGET', key, name .. past)
    if count then
      stale[#stale + 1], gone = name .. past, gone + count
    end
  end
  local used
  if #stale > 0 then
    redis.call('HDEL', key, unpack(stale))
    used = redis.call('HINCRBY', key, rule.sum, -gone)
  else
    used = tonumber(redis.call('HGET', key, rule.sum)) or 0
  end
  if used + cost > limit then return 1 end
  rules[#rules + 1] = rule
  if window > longest then longest = window end
end

for _, rule in ipairs(rules) do
  redis.call('HSET', key, rule.oldest, rule.first)
  redis.call('HINCRBY', key, rule.sum, cost)
  redis.call('HINCRBY', key, rule.block, cost)
end
redis.call('PEXPIRE', key, longest)
return 0
