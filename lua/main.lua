-- The operations of a call, one after another.

-- Writes what an operation has left to be written to its keys. This is the only place that writes. Returns why the server
-- refuses, if it does.
local function write_all(first, last)
  for i = first, last do
    local name, value, expires, reply = KEYS[i], values[i], expiries[i], nil
    if value == GONE then
      reply = redis.pcall('DEL', name)
    elseif value and expires then
      reply = redis.pcall('SET', name, value, expiry_option, expires - expiry_origin)
    elseif value then
      reply = redis.pcall('SETRANGE', name, '0', value) -- the value begins with this; the rest and the expiry stay
    end
    if type(reply) == 'table' and reply.err then return reply.err end
  end
end

local function forget_writes(first, last)
  for i = first, last do values[i], expiries[i] = nil, nil end
end

-- What is replied of an operation that raised an error.
local function failure(problem)
  if type(problem) ~= 'table' then return '\0\2' end -- what is stored could not be unpacked
  if problem.unreadable then redis.call('GET', problem.unreadable) end -- raises what the server says
  return '\0' .. (problem.reason or '\2')
end

local byte = string.byte
local decide -- by the plain script, once an operation needs it
local replies, first, next_block, admitted = { struct.pack('<I6', now) }, 1, last_part + 1, 0
while first <= last_part do
  local next_first, is_done, reply = first, false, nil
  repeat next_first = next_first + 1 until next_first > last_part or byte(ARGV[next_first], 2) < JOINED
  local last, checks_before = next_first - 1, admitted
  if fast_path then is_done, reply, admitted = pcall(fast_path, first, last, next_block, checks_before) end
  if not is_done or not reply then
    decide = decide or plain_script()
    forget_writes(first, last)
    is_done, reply, admitted = pcall(decide, first, last, next_block, checks_before)
  end

  if not is_done then -- it fails alone: it has written nothing
    reply, admitted = failure(reply), 0
    forget_writes(first, last)
  else
    local problem = write_all(first, last)
    if problem then return redis.error_reply((string.gsub(problem, '^.*: %-', ''))) end -- without the place in the script
  end
  replies[#replies + 1] = reply
  first, next_block = next_first, next_block + byte(ARGV[first], 14)
end
return table.concat(replies)
