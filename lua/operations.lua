-- The operations of a call, one after another: each is decided in two passes, then written.
--
-- i, now           the first key of the first operation; the time in ms
-- replies          gets what is replied of each operation but the last, which is returned; nil if there is one key
-- expires, origin  the option of SET that gives a key its expiry, and what the expiry is counted from, in ms
-- An operation that cannot be done raises an error, before anything is written for it.
local i, now, replies, expires, origin = ...
local KEYS, ARGV, redis, sub, unpack = KEYS, ARGV, redis, string.sub, struct.unpack
local states = { false } -- of the keys of one operation
local task, other, reply, admitted = nil, nil, nil, 0

while KEYS[i] do
  if reply then replies[#replies + 1] = reply end
  local first, keys, count, asked = i, 0, nil, nil

  -- Pass 1: reads every key, and tests how many times the units fit.
  repeat
    local arg = ARGV[i + 1]
    if not task or arg ~= task.arg then -- concurrent requests mostly ask the same of different keys, or two things in turn
      task, other = other, task
      if not task or arg ~= task.arg then
        local action, times, units, rules = unpack('<I1I4I7I1', arg)
        local counts, front = '<I1I7I7I7', '<I1I7I7I7I6I6I7I7I7'
        if rules ~= 3 then
          local each = string.rep('I7', rules)
          counts = '<I1' .. each
          front = counts .. 'I6I6' .. each
        end
        task = {
          arg = arg, action = action, count = times, units = units, rules = rules, counts = counts, front = front,
          labels = sub(arg, 14 + rules * 7), unpack(counts, arg, 13),
        }
      end
    end
    if keys == 0 then
      count = task.action == 1 and admitted or task.count
      asked = count
    end

    local rules, labels, units = task.rules, task.labels, task.units
    local value, state = asked > 0 and redis.pcall('GET', KEYS[i]), nil
    if value and sub(value, -#labels) == labels then
      state = { task = task, value = value, written = false, is_whole = false, unpack(task.front, value) }
      if state[1] ~= rules or state[rules + 2] > now then state = nil end
    end
    if value and not state then state = seldom().slow_path().relayout(now, value, task) end
    if not state or state[state[1] + 3] <= now then
      state = { task = task, value = false, written = false, is_whole = true }
    end
    i, keys = i + 1, keys + 1
    states[keys] = state

    for k = 2, rules + 1 do
      if count > 1 or units > task[k] - (state[k] or 0) then
        count = seldom().fitting(now, state, count)
        break
      end
    end
  until not KEYS[i] or (ARGV[i + 1] == task.arg and task.action or string.byte(ARGV[i + 1])) < 8

  -- Pass 2: charges every key, or explains of every key why it does not fit.
  local action = states[1].task.action
  if asked == 0 then
    reply = action == 4 and '\1' or '\2'
    if action == 4 then states[1].is_gone = true end
    admitted = 0
  elseif action > 1 then
    reply = seldom().slow_path().settle(now, states, keys)
    admitted = 0
  else
    reply = count == 1 and '\1\1\0\0\0' or '\1' .. struct.pack('<I4', count)
    for key = 1, keys do
      local state = states[key]
      local units, stepped_back = state.task.units * count, false
      if units > 0 then
        if state.value then stepped_back = charge(now, state, units) else seldom().create(now, state, units) end
      end
      if count == asked and units > 0 and not stepped_back then
        reply = reply .. '\2' .. sub(state.written, 1, 1 + state.task.rules * 7)
      else
        local told = state.written and seldom().slow_path().after(state) or state
        reply = reply .. seldom().explain(now, told, count < asked and state.task.units or 0)
      end
    end
    admitted = count
  end

  -- Writes.
  is_writing = true
  for key = 1, keys do
    local state = states[key]
    local name, written = KEYS[first + key - 1], state.written
    if not written then
      if state.is_gone then redis.call('DEL', name) end
    elseif not state.is_whole then
      redis.call('SETRANGE', name, '0', written)
    elseif state.expires then
      redis.call('SET', name, written, expires, state.expires - origin)
    else
      redis.call('SET', name, written, 'KEEPTTL')
    end
  end
  is_writing = false
end
return reply
