-- Calls the plain script if the fast path has handed the operation over, and writes the values that either has left.

if not fast_path or not reply then
  plain = plain or plain_script(now, tasks, stored, values, expiries)
  reply, count = plain(first, last, next_block, admitted)
end

for part = first, last do
  local value, expires, written = values[part], expiries[part], nil
  if value == GONE then
    written = try('DEL', KEYS[part])
  elseif value and expires then
    written = try('SET', KEYS[part], value, expiry_option, expires - expiry_origin)
  elseif value then
    written = try('SETRANGE', KEYS[part], '0', value) -- the value begins with this; the rest and the expiry stay
  end
  if type(written) == 'table' and written.err then -- no write of this call is accepted
    return redis.error_reply((string.gsub(written.err, '^.*: %-', ''))) -- without the place in the script
  end
end
replies[#replies + 1] = reply
next_block, first, admitted = next_block + block_count, last + 1, count
