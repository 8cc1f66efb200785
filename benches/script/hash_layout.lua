-- The hash layout of the multi-rule article, written plainly: one field for each sub-bucket, one for the sum, one for
-- the oldest sub-bucket. It is here to be measured against.
--
-- KEYS[1]  the key
-- ARGV[1]  the rules as JSON, as in the article: [[limit, window, precision], …], in ms
-- ARGV[2]  the cost
local key, cost = KEYS[1], tonumber(ARGV[2])
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local rules, longest = {}, 0

for _, rule in ipairs(cjson.decode(ARGV[1])) do
  local limit, window, precision = rule[1], rule[2], rule[3]
  local name = window .. ':' .. precision .. ':'
  local block = math.floor(now / precision)
  local blocks = { sum = name, oldest = name .. 'o', block = name .. block, first = block - math.ceil(window / precision) }
  local oldest = tonumber(redis.call('HGET', key, blocks.oldest)) or blocks.first
  local stale, gone = {}, 0
  for past = oldest, math.min(blocks.first, oldest + math.ceil(window / precision) + 1) - 1 do
    local count = redis.call('HGET', key, name .. past)
    if count then
      stale[#stale + 1], gone = name .. past, gone + count
    end
  end
  local used
  if #stale > 0 then
    redis.call('HDEL', key, unpack(stale))
    used = redis.call('HINCRBY', key, blocks.sum, -gone)
  else
    used = tonumber(redis.call('HGET', key, blocks.sum)) or 0
  end
  if used + cost > limit then return 1 end
  rules[#rules + 1] = blocks
  if window > longest then longest = window end
end

for _, blocks in ipairs(rules) do
  redis.call('HSET', key, blocks.oldest, blocks.first)
  redis.call('HINCRBY', key, blocks.sum, cost)
  redis.call('HINCRBY', key, blocks.block, cost)
end
redis.call('PEXPIRE', key, longest)
return 0
