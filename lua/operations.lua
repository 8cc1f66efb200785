-- The operations of a call, one after another: each is decided in two passes, then written.
--
-- i, last         the first key of the first operation, and the last key of all operations
-- blocks          the last key of a block that was read; the keys of blocks stand behind `last`
-- now             in ms
-- replies         gets what is replied of each operation but the last; false if the call has one key
-- option, origin  the option of SET that gives a key its expiry, and what the expiry is counted from, in ms
-- Returns what is replied of the call.
-- An operation that cannot be done raises an error, before anything is written for it.
local i, last, blocks, now, replies, option, origin = ...
local KEYS, ARGV, redis, sub, struct, spread = KEYS, ARGV, redis, string.sub, struct, unpack or table.unpack
local pack, unpack = struct.pack, struct.unpack
local arg, task, action, checks, block_count -- the newest argument, and what it asks for
local are_buckets -- whether all of its rules are
local reply, admitted = nil, 0 -- of the newest operation
local whole_reply -- of a call of one key, that is a check of it

while i <= last do
  if reply then replies[#replies + 1] = reply end
  local first, kind, count, asked = i, nil, nil, nil
  local block -- the latest of the identities that the operation is about
  local state, is_last -- of the newest key
  local tasks, states -- of all keys, where there are several or the operation is no check

  -- Pass 1: reads every key, and tests how many times the units fit.
  repeat
    if ARGV[i] ~= arg then -- concurrent requests mostly ask the same of different keys
      arg = ARGV[i]
      local units, rules
      action, checks, units, block_count, rules = unpack('<I1I4I7I1I1', arg, 2)
      -- 128 rules more: all are buckets. Then the labels are read, too, and the dues are written with the counts.
      local counts_format, front_format, reply_format, labels_format
      if rules == 1 then
        counts_format, front_format, reply_format = '<I1I7', '<I1I7I7I6I6', '<I6I1I4I1I1I7'
      elseif rules == 3 then
        counts_format, front_format, reply_format = '<I1I7I7I7', '<I1I7I7I7I7I7I7I6I6', '<I6I1I4I1I1I7I7I7'
      elseif rules == 129 then
        rules, counts_format, labels_format = 1, '<I1I7I7', '<I1I7I6I6'
        front_format, reply_format = '<I1I7I7I6I6', '<I6I1I4I1I1I7'
      elseif rules == 131 then
        rules, counts_format, labels_format = 3, '<I1I7I7I7I7I7I7', '<I1I7I7I7I6I6I6I6I6I6'
        front_format, reply_format = '<I1I7I7I7I7I7I7I6I6', '<I6I1I4I1I1I7I7I7'
      else
        local n = rules % 128
        local each = string.rep('I7', n)
        counts_format, reply_format = '<I1' .. each, '<I6I1I4I1I1' .. each
        front_format = counts_format .. each .. 'I6I6'
        if rules > 128 then
          labels_format = counts_format .. string.rep('I6I6', n)
          rules, counts_format = n, counts_format .. each
        end
      end
      if action % 8 == 3 then units = -units end -- of a settlement that takes
      are_buckets = labels_format
      local labels, limits = sub(arg, 16 + rules * 7), labels_format or counts_format
      task = { units, labels, front_format, counts_format, reply_format, unpack(limits, arg, 15) }
      if are_buckets then task[6] = rules end
    end
    if i == first then
      kind, count = action % 8, action == 1 and admitted or checks
      for place = 0, block_count - 1 do
        blocks = blocks + 1
        local held = redis.pcall('GET', KEYS[blocks])
        if held then block = seldom('blocks').later_block(now, block, place, held) end
      end
      if block then count = 0 end
      asked = count
    end

    local units, labels, rules = task[1], task[2], task[6]
    local expiry = rules * 2 + 6 -- its place in a state
    -- False where there is no such key. Where it holds no string, a table: then `sub` raises an error.
    local value = asked > 0 and redis.pcall('GET', KEYS[i])
    state = nil
    if value and sub(value, -#labels) == labels then
      state = { value, false, false, unpack(task[3], value) }
      if state[4] ~= rules or state[expiry - 1] > now then state = nil end
    end
    if value and not state then -- it has other sections, or the clock has stepped back
      state = seldom('slow_path').relayout(now, value, task)
      expiry = state[4] * 2 + 6
    end
    if not state or state[expiry] <= now then
      state = { false, false, true }
    end

    if are_buckets and not state[3] then -- what is missing, and the time, replace what the state has of them
      local label = rules + 7
      for k = 5, rules + 4 do
        local per_unit, refill, due = task[label] - 140737488355328, task[label + 1], k + rules
        local missing, elapsed = state[k], now - state[due]
        if elapsed < 0 then -- the clock stepped back
          state = seldom('slow_path').relayout(now, value, task)
          count = seldom('fitting', now, task, state, count)
          break
        end
        missing = elapsed < missing / refill and missing - elapsed * refill or 0 -- as in `read_section`
        local room = (task[k + 2] * per_unit - missing) / per_unit
        if units > room then
          count = 0
        elseif count > 1 and units > 0 then
          room = room - room % 1
          count = math.min(count, (room - room % units) / units)
        end
        state[k], state[due], label = missing, now, label + 2
      end
    else -- in a settlement, too, where no count is asked for
      for k = 5, rules + 4 do -- the place of what is used in a state; that of the limit in a task is k + 2
        local used = state[k] or 0
        if count > 1 or units > task[k + 2] - used then
          local may_fit = state[1] and (state[3] or state[state[4] + k] <= now) -- else nothing has been released
          -- More than the limit is mostly used of a bucket, in units * ms. Those that this does not find are left to
          -- `fitting`, which costs more.
          local step = may_fit and count == 1 and used > task[k + 2] and unpack('<I6', labels, k * 12 - 59) or 0
          if step < 140737488355328 or units > task[k + 2] - math.ceil(used / (step - 140737488355328)) then
            count = (may_fit or count > 1) and seldom('fitting', now, task, state, count) or 0
            break
          end
        end
      end
    end
    i = i + 1
    is_last = i > last or (ARGV[i] == arg and action or string.byte(ARGV[i], 2)) < 8
    if states or not is_last or kind > 1 then
      tasks, states = tasks or {}, states or {}
      tasks[i - first], states[i - first] = task, state
    end
  until is_last

  -- Pass 2: charges every key, or explains of every key why it does not fit.
  if asked == 0 then
    if block then
      reply = '\3' .. block
    elseif kind == 4 then
      reply, state.is_gone = '\1', true
    elseif kind > 4 then
      reply = seldom('blocks').block(now, first, tasks, states)
    else
      reply = '\2'
    end
    admitted = 0
  elseif kind > 1 then
    reply = seldom('settle')(now, tasks, states)
  else
    reply = count == 1 and '\1\1\0\0\0' or count == 0 and '\1\0\0\0\0' or pack('<I1I4', 1, count)
    for key = 1, i - first do
      if states then task, state = tasks[key], states[key] end
      local units, stepped_back = task[1] * count, false
      if units > 0 and state[1] then
        stepped_back = charge(now, task, state, units, struct, sub, spread)
      elseif units > 0 then
        seldom('create', now, task, state, units)
      end
      if count < asked or units == 0 or stepped_back then
        local told = state[2] and seldom('slow_path').after(state) or state
        local explained = seldom('explain', now, task, told, count < asked and task[1] or 0, last == 1 and count or nil)
        if last == 1 then whole_reply = explained else reply = reply .. explained end
      elseif last > 1 then
        reply = reply .. '\2' .. sub(state[2], 1, 1 + task[6] * 7)
      else -- nothing else is replied: at once, as in `explain`
        whole_reply = pack(task[5], now, 1, count, 2, spread(state, 4, task[6] + 4))
      end
    end
    admitted = count
  end

  -- Writes.
  is_writing = true
  for key = 1, i - first do
    state = states and states[key] or state
    local name, written, how = KEYS[first + key - 1], state[2], state[3]
    if not written then
      if state.is_gone then redis.call('DEL', name) end
    elseif not how then
      redis.call('SETRANGE', name, '0', written)
    elseif how == true then
      redis.call('SET', name, written, 'KEEPTTL')
    else
      redis.call('SET', name, written, option, how - origin)
    end
  end
  is_writing = false
end
return whole_reply or pack('<I6', now) .. (replies and table.concat(replies) or '') .. (reply or '')
