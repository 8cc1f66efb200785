-- Pass 2 of a check: how one key is explained or charged. Nothing is written to the server here.
--
-- A *task* is what an argument asks to be done with a key, a table: `arg`, the argument; `action`, `count` and `units`
-- as README.md tells; `rules`, how many; their limits, or in a settlement the ends of the charged steps, from [2] on;
-- `labels` of the rules, as they stand at the end of a value; and two formats, `front` of the front of a value and
-- `counts` of its beginning.
--
-- A *state* is what a key holds, a table: `task`; `value`, false where nothing counts; the numbers of the value's
-- front: at [1] how many sections, then what each uses, since, expires, and when each is due. Pass 2 adds what is to be
-- written: `written`, all of a value if `is_whole`, else its first bytes; `expires`, when the key shall expire, if not
-- when it does; or `is_gone`.

-- Pass 2: what is to be replied of one key: for each rule what is used, the end of the newest step, and when the units
-- fit.
-- now    in ms
-- state  of the key
-- units  that ought to fit; 0 if only what counts is asked for
local function explain(now, state, units)
  local task, value, sections = state.task, state.value, state[1]
  local rules, labels = task.rules, task.labels
  if not value then return '\1' .. string.rep('\0', rules * 19) end
  local pack, unpack = struct.pack, struct.unpack
  local reply, at = '\1', 14 + sections * 14
  for k = 1, rules do
    local used, newest, fits_at = state[k + 1], nil, 0
    local limit, is_due = task[k + 1], state[sections + 3 + k] <= now
    if is_due or used - limit + units > 0 then -- in this order, no number is too large
      local first, base, width, live, behind, step, hold, _
      used, newest, first, base, width, live, behind, _, step, hold = read_section(now, value, at, labels, k, used)
      local excess = used - limit + units -- what has to be released
      if excess == 1 then
        fits_at = first + hold
      elseif excess > 0 and units <= limit then
        local entry, size, wrap = entry_format(width)
        local last = live + lower_bound(value, live, behind, width, true, base, excess) * size
        local after = last < behind and (newest / step - unpack(entry, value, last)) % wrap * step or 0
        fits_at = newest - after + hold
      end
    else
      newest = unpack('<I6', value, at)
    end
    reply = reply .. pack('<I7I6I6', used, newest, fits_at)
    if k < rules then at = at + 28 + unpack('<I4', value, at + 23) end
  end
  return reply
end

-- Pass 2: charges a key where nothing counts.
-- now    in ms
-- state  of the key
-- units  above 0
local function create(now, state, units)
  local spread = table.unpack or unpack
  local task, pack, unpack = state.task, struct.pack, struct.unpack
  local rules, labels = task.rules, task.labels
  local front, since, release, window, heads = { rules }, 0, 0, 0, ''
  for k = 1, rules do
    local step, hold = unpack('<I6I6', labels, k * 12 - 11)
    local start = now - now % step
    local newest = start + step
    if start > since then since = start end
    if newest + hold > release then release, window = newest + hold, hold > 0 and hold or step end
    front[k + 1], front[rules + 3 + k] = units, newest
    heads = heads .. pack('<I6I6', newest, newest) .. '\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0' -- base, length, room, width
  end
  state.expires = release + (window > 60000 and 60000 or window) -- as in `charge`
  front[rules + 2], front[rules + 3] = since, state.expires
  state.written = pack(task.front, spread(front, 1, rules * 2 + 3)) .. heads .. labels
end

-- Pass 2: charges a key, and brings those sections up to date that are due.
-- now    in ms
-- state  of the key; its numbers are changed
-- units  above 0
-- Returns whether the clock has stepped back, so that the units are not in the steps of the time.
local function charge(now, state, units)
  local spread = table.unpack or unpack
  local struct, sub, task, value, sections, is_whole = struct, string.sub, state.task, state.value, state[1], state.is_whole
  local pack, unpack = struct.pack, struct.unpack
  local rules, labels = task.rules, task.labels
  local since, expires, dues = state[sections + 2], state[sections + 3], sections + 3
  local release, window = expires, 0
  local at, reached = 14 + sections * 14, 1 -- the section whose head begins there
  -- What is to follow the front, up to `copied` in the old value: joined as late as can be, since each string that is
  -- made is hashed.
  local changed, head, queue, tail, copied = '', '', '', '', at
  for k = 1, rules do
    local used = state[k + 1]
    if now >= state[dues + k] then
      while reached < k do
        reached, at = reached + 1, at + 28 + unpack('<I4', value, at + 23)
      end
      local newest, first, base, width, live, behind, limit, step, hold
      used, newest, first, base, width, live, behind, limit, step, hold = read_section(now, value, at, labels, k, used)

      local closed = '' -- the entry of the step that was the newest
      if used == 0 then
        newest = now - now % step + step
        first = newest
      elseif now >= newest then -- else it is open still, or time stands still
        if width == 0 then width = slow_path().least_width(step, hold) end -- its first entry
        local entry, _, wrap = entry_format(width)
        if used >= wrap or base + used > 9007199254740991 then
          closed, width = slow_path().widen(sub(value, live, behind - 1), width, newest / step, base, used)
          entry, _, wrap = entry_format(width)
          base, live = 0, behind
        end
        closed = closed .. pack(entry, newest / step % wrap, (base + used) % wrap)
        newest = now - now % step + step
      end

      local length, room = behind - live + #closed, limit - at - 28
      if length > room then
        room = room > 16 and room * 2 or 32
        if length > room then room = length end
      elseif room > 64 and length * 4 < room then
        room = length > 16 and length * 2 or 32
      end
      if head ~= '' then changed = changed .. head .. queue .. tail end
      if copied < at then changed = changed .. sub(value, copied, at - 1) end
      head, queue, tail = pack('<I6I6I7I4I4I1', newest, first, base, length, room, width), sub(value, live, behind - 1), closed
      copied = at + 28 + length
      if at + 28 + room ~= limit then
        if limit > #value then error('a queue is longer than its value') end
        tail, copied, is_whole = closed .. string.rep('\0', room - length), limit, true
      end

      if newest - step > since then since = newest - step end
      if newest + hold > release then release, window = newest + hold, hold > 0 and hold or step end
      state[dues + k] = first + hold < newest and first + hold or newest
      reached, at = k + 1, limit
    end
    state[k + 1] = used + units
  end

  if head == '' and not is_whole then -- nothing was due: only what is used changes
    state.written = pack(task.counts, spread(state, 1, rules + 1))
    return false
  end
  if release > expires then
    -- A window later than must be, at most a minute: else each new step moved the expiry, and a SET is dearer than a
    -- SETRANGE.
    expires, is_whole = release + (window > 60000 and 60000 or window), true
    state.expires = expires
  elseif state.is_whole then
    state.expires = expires
  end
  state[sections + 2], state[dues] = since, expires
  local format = task.front
  if sections ~= rules then format = slow_path().front_format(sections) end
  local front = pack(format, spread(state, 1, sections * 2 + 3))
  if is_whole then
    state.written, state.is_whole = front .. changed .. head .. queue .. tail .. sub(value, copied), true
  else
    state.written = front .. changed .. head .. queue .. tail
  end
  return since > now
end
