-- The operations of a call, one after another: each is decided in two passes, then written.
--
-- i, now           the first key of the first operation; the time in ms
-- replies          gets what is replied of each operation but the last, which is returned
-- expires, origin  the option of SET that gives a key its expiry, and what the expiry is counted from, in ms
-- An operation that cannot be done raises an error, before anything is written for it.
local i, now, replies, expires, origin = ...
local KEYS, ARGV, call, get, sub, unpack = KEYS, ARGV, redis.call, redis.pcall, string.sub, struct.unpack
local states, arg, task, other, reply, admitted = {}, nil, nil, nil, nil, 0

while KEYS[i] do
  if reply then replies[#replies + 1] = reply end
  local first, count, asked = i, nil, nil

  -- Pass 1: reads every key, and tests how many times the units fit.
  repeat
    if ARGV[i + 1] ~= arg then -- concurrent requests mostly ask the same of different keys, or two things in turn
      arg, task, other = ARGV[i + 1], other, task
      if not task or task.arg ~= arg then
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
    if i == first then
      count = task.action == 1 and admitted or task.count
      asked = count
    end

    local rules, labels, units = task.rules, task.labels, task.units
    local value, state = asked > 0 and get('GET', KEYS[i]), nil
    if value and sub(value, -#labels) == labels then
      state = { task = task, value = value, written = false, is_whole = false, unpack(task.front, value) }
      if state[1] ~= rules or state[rules + 2] > now then state = nil end
    end
    if value and not state then state = slow_path().relayout(now, value, task) end
    if not state or state[state[1] + 3] <= now then
      state = { task = task, value = false, written = false, is_whole = true }
    end
    states[i], value = state, state.value

    for k = 1, rules do
      local limit, used = task[k + 1], state[k + 1] or 0
      if (units > limit - used or count > 1) and value and state[state[1] + 3 + k] <= now then
        local at = 14 + state[1] * 14
        for _ = 2, k do at = at + 28 + unpack('<I4', value, at + 23) end
        if state.is_whole or unpack('<I6', value, at + 6) + unpack('<I6', labels, k * 12 - 5) <= now then
          used = read_section(now, value, at, labels, k, used) -- without what is released
        end
      end
      local room = limit - used
      if units > room then
        count = 0
      elseif count > 1 and units > 0 then
        count = math.min(count, (room - room % units) / units)
      end
    end
    i = i + 1
  until not KEYS[i] or (ARGV[i + 1] == arg and task.action or string.byte(ARGV[i + 1])) < 8

  -- Pass 2: charges every key, or explains of every key why it does not fit.
  local action = states[first].task.action
  if asked == 0 then
    reply = action == 4 and '\1' or '\2'
    if action == 4 then states[first].is_gone = true end
    admitted = 0
  elseif action > 1 then
    reply = slow_path().settle(now, states, first, i - 1)
    admitted = 0
  else
    reply = count == 1 and '\1\1\0\0\0' or '\1' .. struct.pack('<I4', count)
    for j = first, i - 1 do
      local state = states[j]
      local units, stepped_back = state.task.units * count, false
      if units > 0 then
        if state.value then stepped_back = charge(now, state, units) else create(now, state, units) end
      end
      if count == asked and units > 0 and not stepped_back then
        reply = reply .. '\2' .. sub(state.written, 1, 1 + state.task.rules * 7)
      else
        local told = state.written and slow_path().after(state) or state
        reply = reply .. explain(now, told, count < asked and state.task.units or 0)
      end
    end
    admitted = count
  end

  -- Writes.
  is_writing = true
  for j = first, i - 1 do
    local state = states[j]
    local written = state.written
    if not written then
      if state.is_gone then call('DEL', KEYS[j]) end
    elseif not state.is_whole then
      call('SETRANGE', KEYS[j], '0', written)
    elseif state.expires then
      call('SET', KEYS[j], written, expires, state.expires - origin)
    else
      call('SET', KEYS[j], written, 'KEEPTTL')
    end
  end
  is_writing = false
end
return reply
