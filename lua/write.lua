-- Calls the plain script if the fast path has handed the operation over, and writes the values that either has left. After
-- an error of the server, the operation fails alone. A server that takes no writes refuses the first of a call or none. For
-- want of a right, it may refuse a later one.

local problem, has_begun -- the server's error, and whether a write may have come before it
if not fast_path or not reply then
  for block = next_block, blocks_found == 0 and next_block + block_count - 1 or 0 do stored[block] = false end
  plain = plain or rare('plain')(now, slack, expire, tasks, stored, values, expiries, offsets, try, spread, rare('slots'))
  reply, count = plain(first, last, next_block, admitted)
  if not reply then problem, has_begun = count, action >= RENEW end
end

for part = first, last do
  local key, value, expires, written = KEYS[part], values[part], expiries[part], nil
  if offsets[part] then -- the rest of the value stays
    written = try('SETRANGE', key, offsets[part], value)
    if expires and type(written) ~= 'table' then has_begun, written = true, try(expire, key, expires - expiry_origin) end
  elseif value == GONE then
    written = try('DEL', key)
  elseif type(value) == 'table' then -- ids of slots, each behind the text of its expiry
    for k = 1, #value do
      written = try('ZADD', key, spread(value[k]))
      if type(written) == 'table' then break end
      has_begun = true
    end
    if type(written) ~= 'table' then written = try(expire, key, slack > 0 and expires + slack or value[1][1]) end
    if type(written) ~= 'table' and action < RENEW and now % 8 == 0 then written = try('ZREMRANGEBYSCORE', key, '-inf', now) end
  elseif value then
    written = try('SET', key, value, expiry_option, expires - expiry_origin)
  end
  if type(written) == 'table' and written.err then
    problem = written.err
    break
  end
  has_begun = has_begun or value
end
if problem then -- the text without the place in the script
  problem = sub(string.gsub(problem, '^.*: %-', ''), 1, 255)
  reply, count = pack('<I1I1I1', 0, has_begun and 6 or 5, #problem) .. problem, 0
end
reply_count = reply_count + 1
replies[reply_count] = reply
next_block, first, admitted = next_block + block_count, last + 1, count
