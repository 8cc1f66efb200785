-- Pass 2 of a key that is charged and where something counts. Nothing is written to the server here.
--
-- A *task* is what an argument asks to be done with a key, an array, since names would cost more: at [1] the units,
-- below 0 where a settlement takes them; at [2] the labels of the rules, as they stand at the end of a value; three
-- formats, at [3] that of the front of a value, at [4] that of its beginning, at [5] that of the reply to a call that
-- charges one key; at [6] how many rules, then their limits, or in a settlement the ends of the charged steps; then, if
-- all rules are buckets, step and hold of each.
--
-- A *state* is what a key holds, a table: `value`, false where nothing counts; the numbers of the value's front: at
-- [1] how many sections, then what each uses, since, expires, and when each is due; then, if the task's rules are all
-- that is stored and are buckets, newest, first and base of each; `task`, where an operation has several keys. Pass 2
-- adds what is to be written: `written`, all of a value if `is_whole`, else its first bytes; `expires`, when the key
-- shall expire, if not when it does; or `is_gone`. It puts what is missing in buckets in the place of what they use, to
-- be replied: `has_buckets` says so where not all are buckets.

-- Pass 2: charges a key, and brings those sections up to date that are due.
-- now    in ms
-- task   what is asked
-- state  of the key; its numbers are changed
-- units  above 0
-- Returns whether the clock has stepped back, so that the units are not in the steps of the time.
local function charge(now, task, state, units)
  local spread = table.unpack or unpack
  local struct, sub, value, sections, is_whole = struct, string.sub, state.value, state[1], state.is_whole
  local pack, unpack = struct.pack, struct.unpack
  local labels, rules = task[2], task[6]

  -- Buckets alone: each charge changes all heads, so they are read and written with the front. What is missing is
  -- reckoned as in `read_section`, which would cost a call.
  if task[rules + 8] and not state.is_whole then
    local head, asked, expires, release, window = rules * 2 + 4, rules + 7, state[rules + 3], 0, 0
    for k = 1, rules do
      local per_unit, hold = task[asked] - 140737488355328, task[asked + 1]
      local used, elapsed, most = state[k + 1], now - state[head], task[k + 6]
      local missing = used * per_unit - state[head + 2]
      missing = elapsed < missing / hold and missing - elapsed * hold or 0
      used = missing / per_unit
      if used % 1 > 0 then used = used - used % 1 + 1 end
      state[head], state[head + 1] = now, most < 281474976710656 and most or 281474976710655
      state[k + 1], state[head + 2] = used + units, used * per_unit - missing
      missing = missing + units * per_unit
      if now + missing / hold >= expires then -- rounded, it is not too early
        local full = missing / hold + 1
        full = now + (full < 140737488355328 and full - full % 1 or 140737488355328)
        if full > release then release, window = full, most * per_unit / hold end
      end
      head, asked = head + 3, asked + 2
    end
    state[rules + 2] = now
    if release > expires then -- as below
      expires = release + (window > 60000 and 60000 or window - window % 1)
      state[rules + 3], state.expires, state.is_whole = expires, expires, true
    end
    local written = pack(task[3], spread(state, 1, rules * 5 + 3))
    state.written = state.is_whole and written .. sub(value, #written + 1) or written
    for k = 1, rules do
      state[k + 1] = state[k + 1] * (task[rules + 5 + k * 2] - 140737488355328) - state[rules * 2 + 3 + k * 3]
    end
    return false
  end

  local since, expires, dues = state[sections + 2], state[sections + 3], sections + 3
  local release, window = expires, 0
  local at, reached = 14 + sections * 14, 1 -- the section whose head begins there
  -- What is to follow the front, up to `copied` in the old value: joined as late as can be, since each string that is
  -- made is hashed.
  local changed, head, queue, tail, copied = '', '', '', '', at
  local buckets -- of each its place in the state, and what is missing in it
  for k = 1, rules do
    local used = state[k + 1]
    if now >= state[dues + k] then
      while reached < k do
        reached, at = reached + 1, at + 28 + unpack('<I4', value, at + 23)
      end
      local newest, first, base, width, live, behind, limit, step, hold
      used, newest, first, base, width, live, behind, limit, step, hold = read_section(now, value, at, labels, k, used)

      local widened, closed, due = nil, '', nil -- the queue in wider entries; the entry of the step that was the newest
      if step > 140737488355328 then -- a bucket: what is missing counts until it is full
        local most, per_unit = task[k + 6], step - 140737488355328
        local missing = (used + units) * per_unit - base
        if buckets then
          buckets[#buckets + 1], buckets[#buckets + 2] = k + 1, missing
        else
          buckets = { k + 1, missing }
        end
        first = most < 281474976710656 and most or 281474976710655
        local full = missing / hold + 1
        full = newest + (full < 140737488355328 and full - full % 1 or 140737488355328)
        if full > release then release, window = full, most * per_unit / hold end
        step, hold, due = 0, 0, 0
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
  state[sections + 2], state[dues] = since, expires
  local format = task[3]
  if sections ~= rules or task[rules + 8] then format = seldom().slow_path().front_format(sections) end
  local front = pack(format, spread(state, 1, sections * 2 + 3))
  if is_whole then
    state.written, state.is_whole = front .. changed .. head .. queue .. tail .. sub(value, copied), true
  else
    state.written = front .. changed .. head .. queue .. tail
  end
  if buckets then
    state.has_buckets = true
    for i = 1, #buckets, 2 do state[buckets[i]] = buckets[i + 1] end
  end
  return since > now
end
