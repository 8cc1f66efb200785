-- The call: its version, its time, and what becomes of operations that cannot be done. README.md beside this file says
-- what a call looks like.

local version, last, now, option, origin = ARGV[1] and string.byte(ARGV[1]), #ARGV, nil, 'PXAT', 0
if version == 1 then
  local time = redis.call('TIME')
  local ms = time[2] / 1000
  now = time[1] * 1000 + (ms - ms % 1) -- a whole number is added: the sum is exact
elseif version == 129 and #ARGV[last] == 6 then
  now, last = struct.unpack('<I6', ARGV[last]), last - 1
  option, origin = 'PX', now - 86400000 -- a day more, so that the server's clock ends no key during a test
else
  return redis.error_reply('CALLVERSION the call is of another version than the script')
end

-- An operation that cannot be done fails alone: it is stepped over, and its neighbours are decided.
local replies, done, reply = last > 1 and {}, false, nil
local i, blocks = 1, last -- the first key of the next operation, and the last key of a block that was read
while not done do
  done, reply = pcall(execute, i, last, blocks, now, replies, option, origin)
  if not done then
    if type(reply) == 'table' then reply = reply.err or '' end -- of some servers; of others it is a string
    if is_writing then -- no write of this call is accepted
      return redis.error_reply((string.gsub(reply, '^.*: %-', ''))) -- without the place in the script
    end
    -- The operation that failed is the one after those that were replied.
    local keys
    replies, i, blocks = replies or {}, 1, last
    for _ = 0, #replies do
      keys = {}
      for _ = 1, string.byte(ARGV[i], 14) do
        blocks = blocks + 1
        keys[#keys + 1] = KEYS[blocks]
      end
      repeat
        keys[#keys + 1] = KEYS[i]
        i = i + 1
      until i > last or string.byte(ARGV[i], 2) < 8
    end
    local reason = string.find(reply, 'a value of another version', 1, true) and '\3' or '\2'
    for _, key in ipairs(keys) do
      local value = redis.pcall('GET', key)
      if type(value) == 'table' then
        if not string.find(value.err, 'WRONGTYPE', 1, true) then
          redis.call('GET', key) -- not about the value: raised
        end
        reason = '\1'
      end
    end
    replies[#replies + 1] = '\0' .. reason
  end
end
return reply
