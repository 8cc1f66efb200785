-- The call: its head, and what becomes of operations that cannot be done. README.md beside this file says what a call
-- looks like.

local head, now, expires, origin = ARGV[1], nil, 'PXAT', 0
if head == '\1' then
  local time = redis.call('TIME')
  local ms = time[2] / 1000
  now = time[1] * 1000 + (ms - ms % 1) -- a whole number is added: the sum is exact
elseif head and #head == 7 and string.byte(head) == 1 then
  now = struct.unpack('<I6', head, 2)
  expires, origin = 'PX', now - 86400000 -- a day more: a clock that is set by hand must not meet real expiry
else
  return redis.error_reply('CALLVERSION the call is of another version than the script')
end

-- An operation that cannot be done fails alone: it is stepped over, and its neighbours are decided.
local replies, done, reply, i = KEYS[2] and {}, false, nil, 1
while not done do
  done, reply = pcall(execute, i, now, replies, expires, origin)
  if not done then
    if type(reply) == 'table' then reply = reply.err or '' end -- as servers differ
    if is_writing then -- no write of this call is accepted
      return redis.error_reply((string.gsub(reply, '^.*: %-', '')))
    end
    local first, next_one = 0, 1
    replies = replies or {}
    for _ = 0, #replies do
      first = next_one
      repeat next_one = next_one + 1 until not KEYS[next_one] or string.byte(ARGV[next_one + 1]) < 8
    end
    local reason = string.find(reply, 'a value of another version', 1, true) and '\3' or '\2'
    for key = first, next_one - 1 do
      local value = redis.pcall('GET', KEYS[key])
      if type(value) == 'table' then
        if not string.find(value.err, 'WRONGTYPE', 1, true) then redis.call('GET', KEYS[key]) end -- not about the value: raised
        reason = '\1'
      end
    end
    i, replies[#replies + 1] = next_one, '\0' .. reason
  end
end
return reply
