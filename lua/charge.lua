-- Pass 2 of a key that is charged and where something counts. Nothing is written to the server here.
--
-- A *task* is what an argument asks to be done with a key, an array, since names would cost more: at [1] the units,
-- below 0 where a settlement takes them; at [2] the labels of the rules, as they stand at the end of a value; three
-- formats, at [3] that of the front of a value, at [4] that of what changes in it with each charge, at [5] that of the
-- reply to a call that charges one key; at [6] how many rules, then their limits, or in a settlement the ends of the
-- charged steps; then, if all rules are buckets, step and hold of each.
--
-- A *state* is what a key holds, a table: `value`, false where nothing counts; the numbers of the value's front: at
-- [1] how many sections, then what each uses, when each is due, since and expires; `task`, where an operation has
-- several keys. Pass 2 adds what is to be written: `written`, all of a value if `is_whole`, else its first bytes;
-- `expires`, when the key shall expire, if not when it does; or `is_gone`.

-- Pass 2: charges a key, and brings those sections up to date that are due.
-- now    in ms
-- task   what is asked
-- state  of the key; its numbers are changed
-- units  above 0
-- Returns whether the clock has stepped back, so that the units are not in the steps of the time.
local function charge(now, task, state, units)
  local spread, rules = table.unpack or unpack, task[6]
  local pack, is_whole = struct.pack, state.is_whole

  -- Buckets alone: pass 1 has put in the state what is missing now, and the time.
  if task[rules + 8] and not is_whole then
    local label, expires, release, window = rules + 7, state[rules * 2 + 3], 0, 0
    for k = 2, rules + 1 do
      local per_unit, refill = task[label] - 140737488355328, task[label + 1]
      local missing = state[k] + units * per_unit
      state[k], label = missing, label + 2
      if now + missing / refill >= expires then -- rounded, it is not too early
        local full = missing / refill + 1
        full = now + (full < 140737488355328 and full - full % 1 or 140737488355328)
        if full > release then release, window = full, task[k + 5] * per_unit / refill end
      end
    end
    if release <= expires then
      state.written = pack(task[4], spread(state, 1, rules * 2 + 1))
    else
      expires = release + (window > 60000 and 60000 or window - window % 1) -- as below
      state[rules * 2 + 3], state.expires, state.is_whole = expires, expires, true
      state.written = pack(task[3], spread(state, 1, rules * 2 + 3)) .. string.sub(state.value, rules * 14 + 14)
    end
    return false
  end

  local struct, sub, value, sections, labels = struct, string.sub, state.value, state[1], task[2]
  local unpack = struct.unpack
  local since, expires, dues = state[sections * 2 + 2], state[sections * 2 + 3], sections + 1
  local release, window, stands_still = expires, 0, since > now
  local at, reached = 14 + sections * 14, 1 -- the section whose head begins there
  -- What is to follow the front, up to `copied` in the old value: joined as late as can be, since each string that is
  -- made is hashed.
  local changed, head, queue, tail, copied = '', '', '', '', at
  for k = 1, rules do
    local used = state[k + 1]
    if now >= state[dues + k] or stands_still then
      while reached < k do
        reached, at = reached + 1, at + 28 + unpack('<I4', value, at + 23)
      end
      local newest, first, base, width, live, behind, limit, step, hold
      used, newest, first, base, width, live, behind, limit, step, hold = read_section(now, value, at, labels, k, state)

      local widened, closed, due = nil, '', nil -- the queue in wider entries; the entry of the step that was the newest
      if step > 140737488355328 then -- a bucket: what is missing counts until it is full
        local per_unit = step - 140737488355328
        local missing = used + units * per_unit
        used = missing - units -- which are added below
        local full = missing / hold + 1
        full = newest + (full < 140737488355328 and full - full % 1 or 140737488355328)
        if full > release then release, window = full, task[k + 6] * per_unit / hold end
        if newest > since then since = newest end
        due, newest, step, hold = newest, 0, 0, 0
      elseif used == 0 then
        newest = now - now % step + step
        first = newest
      elseif now >= newest then -- else it is open still, or time stands still
        if width == 0 then width = hold / step < 4096 and 1 or seldom().slow_path().least_width(step, hold) end -- its first
        local entry, _, wrap = '<I2I2', 4, 65536
        if width > 1 then entry, _, wrap = seldom().entry_format(width) end
        if used >= wrap or base + used > 9007199254740991 then
          widened, width = seldom().slow_path().widen(sub(value, live, behind - 1), width, newest / step, base, used)
          entry, _, wrap = seldom().entry_format(width)
          base, live = 0, behind
        end
        closed = pack(entry, newest / step % wrap, (base + used) % wrap)
        if widened then closed = widened .. closed end
        newest = now - now % step + step
      end

      local length, room = behind - live + #closed, limit - at - 28
      if length > room then
        room = room > 16 and room * 2 or 32
        if length > room then room = length end
      elseif room > 64 and length * 4 < room then
        room = length > 16 and length * 2 or 32
      end
      if head ~= '' or copied < at then changed = changed .. head .. queue .. tail .. sub(value, copied, at - 1) end
      head, queue, tail = pack('<I6I6I7I4I4I1', newest, first, base, length, room, width), sub(value, live, behind - 1), closed
      copied = at + 28 + length
      if at + 28 + room ~= limit then
        if limit > #value then error('a queue is longer than its value') end
        tail, copied, is_whole = closed .. string.rep('\0', room - length), limit, true
      end

      if newest - step > since then since = newest - step end
      if newest + hold > release then release, window = newest + hold, hold > 0 and hold or step end
      state[dues + k] = due or first + hold < newest and first + hold or newest
      reached, at = k + 1, limit
    end
    state[k + 1] = used + units
  end

  if head == '' and not is_whole then -- nothing was due: only what is used changes
    state.written = pack(task[4], spread(state, 1, rules + 1))
    return false
  end
  if release > expires then
    -- A window later than must be, at most a minute: else each new step moved the expiry, and a SET is dearer than a
    -- SETRANGE.
    expires, is_whole = release + (window > 60000 and 60000 or window - window % 1), true
    state.expires = expires
  elseif state.is_whole then
    state.expires = expires
  end
  state[sections * 2 + 2], state[sections * 2 + 3] = since, expires
  local format = task[3]
  if sections ~= rules then format = seldom().slow_path().front_format(sections) end
  local front = pack(format, spread(state, 1, sections * 2 + 3))
  if is_whole then
    state.written, state.is_whole = front .. changed .. head .. queue .. tail .. sub(value, copied), true
  else
    state.written = front .. changed .. head .. queue .. tail
  end
  return since > now
end
