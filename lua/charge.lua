-- Pass 2 of a key that is charged and where something counts. Nothing is written to the server here.
--
-- A *task* is what an argument asks to be done with a key, an array, since names would cost more: at [1] the units,
-- below 0 where a settlement takes them; at [2] the labels of the rules and the version, as they stand at the end of a
-- value; three formats, at [3] that of the front of a value, at [4] that of what changes in it with each charge, at [5]
-- that of the reply to a call that charges one key; at [6] how many rules, then their limits, or in a settlement the
-- ends of the charged steps (of a bucket, its limit); then, if all rules are buckets, step and hold of each. A number
-- that nobody needs stands last, which `struct.unpack` returns: so [rules + 8] is nil unless all rules are buckets.
--
-- A *state* is what a key holds, an array, too: at [1] the value, false where nothing counts; at [2] what is to be
-- written, false until pass 2; at [3] whether the value has to be written whole, as nothing counts or it was laid out
-- anew, and from pass 2 on how: false if [2] is the first bytes of the value, true if it is all of it, or when the key
-- shall then expire; from [4] on the numbers of the value's front: how many sections, what each uses, when each is due,
-- since and expires. `is_gone` if the key is to be deleted.

-- Pass 2: charges a key, and brings those sections up to date that are due.
-- now     in ms
-- task    what is asked
-- state   of the key; changed
-- units   above 0
-- struct  the library; `sub` and `spread`: `string.sub` and `table.unpack`. To look them up once more would cost more
-- Returns whether the clock has stepped back: the units are then in a step that begins later than `now`.
local function charge(now, task, state, units, struct, sub, spread)
  local pack, rules, sections, is_whole = struct.pack, task[6], state[4], state[3]

  -- Buckets alone: pass 1 has put in the state what is missing now, and the time.
  if task[rules + 8] and not is_whole then
    local label, expires, release, window = rules + 7, state[rules * 2 + 6], 0, 0
    for k = 5, rules + 4 do
      local per_unit, refill = task[label] - 140737488355328, task[label + 1]
      local missing = state[k] + units * per_unit
      state[k], label = missing, label + 2
      if now + missing / refill >= expires then -- else it is full before the key expires
        local full = missing / refill + 1 -- rounded up, below
        full = now + (full < 140737488355328 and full - full % 1 or 140737488355328)
        if full > release then release, window = full, task[k + 2] * per_unit / refill end
      end
    end
    if release <= expires then
      state[2] = pack(task[4], spread(state, 4, rules * 2 + 4))
    else
      expires = release + (window > 60000 and 60000 or window - window % 1) -- as below
      state[3], state[rules * 2 + 6] = expires, expires
      state[2] = pack(task[3], spread(state, 4, rules * 2 + 6)) .. sub(state[1], rules * 14 + 14)
    end
    return false
  end

  local due_from, dues = 1, sections + 4
  if not is_whole then
    while due_from <= rules and now < state[dues + due_from] do
      state[due_from + 4] = state[due_from + 4] + units
      due_from = due_from + 1
    end
    if due_from > rules then -- nothing is due: only what is used changes
      state[2] = pack(task[4], spread(state, 4, rules + 4))
      return false
    end
  end

  local unpack, value, labels = struct.unpack, state[1], task[2]
  local since, expires = state[sections * 2 + 5], state[sections * 2 + 6]
  local latest = since > now and math.huge or now -- while time stands still, all are due
  local release, window = expires, 0
  local at, reached = 14 + sections * 14, 1 -- the section whose head begins there
  -- What is to follow the front, joined as late as can be, since each string that is made is hashed: `changed` holds
  -- the sections before the last one that changed; head, queue and tail are that one; `copied` is the first byte of the
  -- old value that follows.
  local changed, head, queue, tail, copied = '', '', '', '', at
  for k = due_from, rules do
    local used, due = state[k + 4], state[dues + k]
    if due <= latest then
      while reached < k do
        reached, at = reached + 1, at + 28 + unpack('<I4', value, at + 23)
      end
      local newest, first, base, width, live, behind, limit, step, hold
      used, newest, first, base, width, live, behind, limit, step, hold =
        read_section(now, value, at, labels, k, used, due)

      local rewritten, closed = nil, '' -- the queue, written anew; the entry of the step that was the newest
      if step > 140737488355328 then -- a bucket: what is missing counts until it is full
        local per_unit = step - 140737488355328
        local missing = used + units * per_unit
        used = missing - units -- which are added below
        local full = missing / hold + 1
        full = newest + (full < 140737488355328 and full - full % 1 or 140737488355328)
        if full > release then release, window = full, task[k + 6] * per_unit / hold end
        if newest > since then since = newest end
        due, newest, step, hold = newest, 0, 0, 0 -- so that what follows leaves since, release and due as they are
      elseif used == 0 then
        newest = now - now % step + step
        first = newest
      elseif now >= newest then -- else it is open still, or time stands still
        if width == 0 then -- its first entry
          width = hold / step < 4096 and 1 or seldom('slow_path').least_width(step, hold)
        end
        local entry, _, wrap = '<I2I2', 4, 65536
        if width > 1 then entry, _, wrap = seldom('entry_format', width) end
        if used >= wrap or base + used > 9007199254740991 then
          rewritten, width = seldom('slow_path').rewrite(sub(value, live, behind - 1), width, newest / step, base, used)
          entry, _, wrap = seldom('entry_format', width)
          base, live = 0, behind
        end
        closed = pack(entry, newest / step % wrap, (base + used) % wrap)
        if rewritten then closed = rewritten .. closed end
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
      head = pack('<I6I6I7I4I4I1', newest, first, base, length, room, width)
      queue, tail = sub(value, live, behind - 1), closed
      copied = at + 28 + length
      if at + 28 + room ~= limit then
        if limit > #value then error('a queue is longer than its value') end
        tail, copied, is_whole = closed .. string.rep('\0', room - length), limit, true
      end

      if newest - step > since then since = newest - step end
      if newest + hold > release then release, window = newest + hold, hold > 0 and hold or step end
      if step > 0 then due = first + hold < newest and first + hold or newest end
      state[dues + k] = due
      reached, at = k + 1, limit
    end
    state[k + 4] = used + units
  end

  if release > expires then
    -- A window later than must be, at most a minute: else each new step would move the expiry, and a SET is dearer than
    -- a SETRANGE.
    expires = release + (window > 60000 and 60000 or window - window % 1)
    state[3] = expires
  else
    state[3] = state[3] and expires or is_whole -- the expiry is written again only for a value that was laid out anew
  end
  state[sections * 2 + 5], state[sections * 2 + 6] = since, expires
  local format = task[3]
  if sections ~= rules then format = seldom('slow_path').front_format(sections) end
  local front = pack(format, spread(state, 4, sections * 2 + 6))
  if state[3] then
    state[2] = front .. changed .. head .. queue .. tail .. sub(value, copied)
  else
    state[2] = front .. changed .. head .. queue .. tail
  end
  return since > now
end
