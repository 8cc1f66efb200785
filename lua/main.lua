-- The operations of a call, one after another: each is decided, then written. This is the only place that writes.

local fast_path = fast_script() -- decides the common case; tests leave it out
local decide -- by the plain script, which is made when the first operation is handed over
local try = redis.pcall
local replies, first, next_block, admitted = { pack('<I6', now) }, 1, last_part + 1, 0
while first <= last_part do
  local last, is_done, reply, count = first, false, nil, nil
  while last < last_part and byte(ARGV[last + 1], 2) >= JOINED do last = last + 1 end
  if fast_path then is_done, reply, count = pcall(fast_path, first, last, next_block, admitted) end
  if not is_done or not reply then
    decide, values, expiries = decide or plain_script(), {}, {}
    reply, count = decide(first, last, next_block, admitted)
  end

  for i = first, last do
    local value, expires, written = values[i], expiries[i], nil
    if value == GONE then
      written = try('DEL', KEYS[i])
    elseif value and expires then
      written = try('SET', KEYS[i], value, expiry_option, expires - expiry_origin)
    elseif value then
      written = try('SETRANGE', KEYS[i], '0', value) -- the value begins with this; the rest and the expiry stay
    end
    if type(written) == 'table' and written.err then -- no write of this call is accepted
      return redis.error_reply((string.gsub(written.err, '^.*: %-', ''))) -- without the place in the script
    end
  end
  replies[#replies + 1] = reply
  next_block, first, admitted = next_block + byte(ARGV[first], 14), last + 1, count
end
return table.concat(replies)
